"""``backend: deepspeed``: the stage is a knob, and each stage has settings of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from autotune.contract.plan import Topology
from autotune.errors import SpaceError
from autotune.space.loader import load_space, parse_space
from autotune.space.model import Choices
from autotune.space.search_space import SearchSpace

Load = Callable[..., SearchSpace]
STAGES = "zero_stage: {choices: [1, 2, 3]}"
BUCKET = "reduce_bucket_size: {low: 1, high: 1e9}"
PERSISTENCE = "stage3_param_persistence_threshold: {low: 0, high: 1e7}"


def on(space: SearchSpace, device: Any = "cpu") -> SearchSpace:
    return space.on(Topology(processes=2, device=device, devices_per_node=2))


def test_a_setting_of_another_stage_is_no_part_of_the_key(load: Load) -> None:
    space = on(load(STAGES, PERSISTENCE, "round_robin_gradients: {choices: [true, false]}",
                    backend="deepspeed"))  # fmt: skip

    def key(stage: int, persistence: int, dealt: bool) -> str:
        return space.resolve(
            {
                "zero_stage": stage,
                "stage3_param_persistence_threshold": persistence,
                "round_robin_gradients": dealt,
            }
        ).key

    assert key(2, 0, True) == key(2, 10, True)
    assert key(2, 0, True) != key(2, 0, False)
    assert key(3, 0, True) == key(3, 0, False)
    assert key(3, 0, True) != key(3, 10, True)
    assert len({key(stage, 0, True) for stage in (1, 2, 3)}) == 3


def test_conditions_on_the_stage_make_parameters_active(load: Load) -> None:
    space = on(load(STAGES, f"{PERSISTENCE[:-1]}, when: zero_stage == 3}}", backend="deepspeed"))
    for stage, names in ((1, ["zero_stage"]), (3, ["zero_stage", PERSISTENCE.partition(":")[0]])):
        assert [param.name for param in space.active({"zero_stage": stage})] == names
    fixed = load(
        f"{PERSISTENCE[:-1]}, when: zero_stage == 3}}", BUCKET,
        backend="deepspeed", rest="fixed: {zero_stage: 2}\n",
    )  # fmt: skip
    assert [param.name for param in fixed.params] == ["reduce_bucket_size"]
    assert "never true" in fixed.dropped[0].reason


def test_what_changes_nothing_in_any_configuration_is_left_out(load: Load) -> None:
    """Without a condition, too: whatever the sampler draws there, it is the same configuration."""
    batch = "micro_batch: {choices: [1, 2]}"
    overlap = "overlap_comm: {choices: [true, false]}"

    def kept(*params: str, rest: str = "", workload: str = "") -> list[str]:
        space = load(*params, backend="deepspeed", rest=rest, workload=workload)
        return [param.name for param in space.params]

    assert len(kept(STAGES, PERSISTENCE)) == 2
    assert kept("zero_stage: {choices: [1, 2]}", PERSISTENCE) == ["zero_stage"]
    for section in ("fixed", "baseline"):
        stage_1 = f"{section}: {{zero_stage: 1}}\n"
        assert kept(PERSISTENCE, BUCKET, rest=stage_1) == ["reduce_bucket_size"]
        bf16 = kept(batch, BUCKET, overlap, rest=stage_1, workload=", precision: bf16")
        assert bf16 == ["micro_batch"]
    offloads = "fixed: {zero_stage: 1, offload_optimizer: cpu}\n"
    assert len(kept(batch, BUCKET, overlap, rest=offloads, workload=", precision: bf16")) == 3
    stage_1 = "fixed: {zero_stage: 1}\n"
    (gone,) = load(PERSISTENCE, BUCKET, backend="deepspeed", rest=stage_1).dropped
    assert gone.param == "stage3_param_persistence_threshold"
    assert "zero_stage != 3" in gone.reason
    with pytest.raises(SpaceError, match="no parameter is left to tune"):
        load(PERSISTENCE, backend="deepspeed", rest=stage_1)


def test_overlap_has_the_stages_own_default(load: Load) -> None:
    """config.py, overlap_comm_valid: unset it is on at stage 3 and off below."""
    space = on(load(STAGES, backend="deepspeed"), "cuda")
    for stage, overlaps in ((1, False), (2, False), (3, True)):
        config = space.resolve({"zero_stage": stage})
        assert config.values["deepspeed.overlap_comm"] is overlaps
    stated = on(load(STAGES, backend="deepspeed", rest="fixed: {overlap_comm: false}\n"), "cuda")
    assert stated.resolve({"zero_stage": 2}).key == space.resolve({"zero_stage": 2}).key
    assert stated.resolve({"zero_stage": 3}).key != space.resolve({"zero_stage": 3}).key


def test_stage_1_in_bf16_has_no_buckets(load: Load) -> None:
    """engine.py, _do_optimizer_sanity_check: it is BF16_Optimizer, unless it is offloaded."""
    for precision, stage, counts in (("bf16", 1, False), ("bf16", 2, True), ("fp32", 1, True)):
        space = on(load(STAGES, BUCKET, backend="deepspeed", workload=f", precision: {precision}"))
        configs = [
            space.resolve({"zero_stage": stage, "reduce_bucket_size": size}) for size in (1, 9)
        ]
        assert (configs[0].key != configs[1].key) is counts
    offloaded = on(
        load(STAGES, BUCKET, backend="deepspeed", workload=", precision: bf16",
             rest="fixed: {offload_optimizer: cpu}\n")
    )  # fmt: skip
    keys = {offloaded.resolve({"zero_stage": 1, "reduce_bucket_size": size}).key for size in (1, 9)}
    assert len(keys) == 2


def test_both_names_of_the_engine_mean_its_own_knobs(load: Load) -> None:
    """zero3 is an alias: its full names serve under deepspeed, and the other way round."""
    for backend, other in (("deepspeed", "zero3"), ("zero3", "deepspeed")):
        space = load(f"{other}.{BUCKET}", backend=backend)
        assert [param.knob for param in space.params] == [f"{backend}.reduce_bucket_size"]
        assert space.dropped == ()
        passed = "unverified: {deepspeed: {some_key: 1}}\n"
        assert load(backend=backend, rest=passed).unverified == {"deepspeed": {"some_key": 1}}
    with pytest.raises(SpaceError, match="both deepspeed and zero3"):
        load(backend="[zero3, deepspeed]")
    with pytest.raises(SpaceError, match="zero_stage is a knob of deepspeed"):
        load(STAGES, backend="zero3")


def test_stages_other_than_1_to_3_are_refused(load: Load) -> None:
    for stage in (0, 4):
        with pytest.raises(SpaceError, match="zero_stage"):
            load(f"zero_stage: {{choices: [{stage}, 3]}}", backend="deepspeed")


def test_offload_is_tuned_with_permission_only_and_changes_no_other_key(load: Load) -> None:
    offload = "offload_optimizer: {choices: [none, cpu]}"
    for backend in ("zero3", "deepspeed"):
        with pytest.raises(SpaceError, match="changes rounding"):
            load(offload, backend=backend)
        space = load(offload, backend=backend, rest="search: {allow: [offload_optimizer]}\n")
        space = on(space)
        plain, moved = (space.resolve({"offload_optimizer": one}) for one in ("none", "cpu"))
        assert plain.key != moved.key
        assert f"{backend}.offload_optimizer" in plain.dead
        # What an earlier version, without this knob, has recorded.
        earlier = {name: v for name, v in plain.values.items() if "offload" not in name}
        old = dataclasses.replace(plain, values=earlier)
        assert on(load(BUCKET, backend=backend)).assignment_of(old) is not None


def test_contiguous_gradients_cannot_be_off_under_offload_below_stage_3(load: Load) -> None:
    for stage, dead in ((1, True), (2, True), (3, False)):
        space = load(
            backend="deepspeed",
            rest="fixed: {offload_optimizer: cpu, contiguous_gradients: false, "
            f"zero_stage: {stage}}}\n",
        )
        config = on(space).resolve({"micro_batch": 1})
        assert ("deepspeed.contiguous_gradients" in config.dead) is dead


def test_stages_that_cannot_fit_are_left_out_with_the_reason(load: Load) -> None:
    space = on(load(STAGES, backend="deepspeed"))
    kept = space.without_values("deepspeed.zero_stage", {1: "too large"})
    assert kept.params[0].domain == Choices(values=(2, 3), labels=("2", "3"))
    assert [(one.value, one.reason) for one in kept.dropped] == [(1, "too large")]
    assert kept.fingerprint == space.fingerprint
    ranged = on(load("zero_stage: {low: 1, high: 2}", backend="deepspeed"))
    assert ranged.without_values("deepspeed.zero_stage", {1: "x"}).params[0].domain == Choices(
        values=(2,), labels=("2",)
    )
    with pytest.raises(SpaceError, match="no choice of zero_stage is left"):
        ranged.without_values("deepspeed.zero_stage", {1: "x", 2: "y"})


def test_the_shipped_space_of_stages_runs_as_it_is() -> None:
    space = on(load_space("zero.yaml"))
    assert space.backends == ("deepspeed",)
    assert space.dropped == ()
    assert space.violated(space.baseline_config()) is None
    assert parse_space(space.text, file="zero.yaml").fingerprint == space.fingerprint
    active = {
        stage: {param.name for param in space.active({"zero_stage": stage, "overlap_comm": True})}
        for stage in (1, 2, 3)
    }
    assert active[1] == active[2]
    assert active[1] - active[3] == {"use_multi_rank_bucket_allreduce"}
    assert {name for name in active[3] if name.startswith("stage3_")} == active[3] - active[1]
    for stage in (1, 2, 3):
        start = space.project("deepspeed", {"deepspeed.zero_stage": stage})
        assert space.contains(start)
        assert space.resolve(start).values["deepspeed.zero_stage"] == stage
