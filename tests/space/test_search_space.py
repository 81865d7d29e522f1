from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autotune.contract.plan import Topology
from autotune.errors import InputError
from autotune.space.search_space import SearchSpace

Load = Callable[..., SearchSpace]
CPU = Topology(processes=2, device="cpu", devices_per_node=2)
GPU = Topology(processes=2, device="cuda", devices_per_node=2)

CONDITIONAL = (
    "overlap_comm: {choices: [true, false]}",
    "stage3_prefetch_bucket_size: {low: 1e5, high: 1e8, log: true, when: overlap_comm == true}",
)


def test_a_config_names_every_knob_of_its_backend(load: Load) -> None:
    space = load("micro_batch: {choices: [1, 2]}").on(CPU)
    values = space.resolve({"micro_batch": 2}).values
    live = {name for name, knob in space.knobs.items() if not knob.always_dead}
    assert set(values) == live
    assert values["workload.micro_batch"] == 2
    assert values["workload.max_tokens"] is None
    assert values["zero3.reduce_bucket_size"] == 500_000_000


def test_an_inactive_parameter_is_never_at_a_drawn_value(load: Load) -> None:
    """BUG-017"""
    space = load(*CONDITIONAL).on(GPU)
    name = "zero3.stage3_prefetch_bucket_size"
    active = {"overlap_comm": True, "stage3_prefetch_bucket_size": 123_456}
    assert space.resolve(active).values[name] == 123_456
    leaking = {"overlap_comm": False, "stage3_prefetch_bucket_size": 123_456}
    config = space.resolve(leaking)
    assert config.values[name] == 50_000_000
    assert space.params_of(config) == {"overlap_comm": False}
    assert [param.name for param in space.active(leaking)] == ["overlap_comm"]
    assert not space.contains(leaking)
    assert space.contains({"overlap_comm": False})
    assert config.key == space.resolve({"overlap_comm": False}).key


def test_an_inactive_parameter_keeps_the_baselines_value(load: Load) -> None:
    space = load(*CONDITIONAL, rest="baseline: {stage3_prefetch_bucket_size: 7}\n").on(GPU)
    config = space.resolve({"overlap_comm": False})
    assert config.values["zero3.stage3_prefetch_bucket_size"] == 7


def test_active_follows_a_partial_assignment(load: Load) -> None:
    space = load(*CONDITIONAL)
    assert [param.name for param in space.active({})] == ["overlap_comm"]
    assert len(space.active({"overlap_comm": True})) == 2


def test_a_missing_value_is_an_error(load: Load) -> None:
    with pytest.raises(InputError, match="no value for overlap_comm"):
        load(*CONDITIONAL).resolve({})


def test_dead_knobs_are_no_part_of_the_key(load: Load) -> None:
    line = "overlap_comm: {choices: [true, false]}"
    cpu, gpu = load(line).on(CPU), load(line).on(GPU)
    on, off = {"overlap_comm": True}, {"overlap_comm": False}
    assert "zero3.overlap_comm" in cpu.resolve(on).dead
    assert cpu.resolve(on).key == cpu.resolve(off).key
    assert "zero3.overlap_comm" not in gpu.resolve(on).dead
    assert gpu.resolve(on).key != gpu.resolve(off).key


def test_a_knob_dies_with_the_value_of_another(load: Load) -> None:
    space = load(
        "stage3_param_persistence_threshold: {choices: [0, 5]}",
        "stage3_model_persistence_threshold: {choices: [10, 20]}",
    ).on(CPU)

    def key(param: int, model: int) -> str:
        return space.resolve(
            {
                "stage3_param_persistence_threshold": param,
                "stage3_model_persistence_threshold": model,
            }
        ).key

    assert key(0, 10) == key(0, 20)
    assert key(5, 10) != key(5, 20)


def test_an_explicit_default_has_the_key_of_the_default(load: Load) -> None:
    space = load().on(CPU)
    explicit = load(rest="fixed: {reduce_bucket_size: 5e8, allgather_bucket_size: 3}\n").on(CPU)
    config = explicit.resolve({"micro_batch": 1})
    assert config.key == space.resolve({"micro_batch": 1}).key
    assert config.values["zero3.allgather_bucket_size"] == 3
    assert "zero3.allgather_bucket_size" in config.dead


def test_the_baseline_may_lie_outside_the_ranges(load: Load) -> None:
    line = "reduce_bucket_size: {low: 1e6, high: 2e8}"
    space = load(line, rest="baseline: {reduce_bucket_size: 5e8}\n").on(CPU)
    baseline = space.baseline_config()
    assert baseline.values["zero3.reduce_bucket_size"] == 500_000_000
    assert space.assignment_of(baseline) is None
    assert space.params_of(baseline) == {"reduce_bucket_size": 500_000_000}
    assert space.project("zero3", baseline.values) == {"reduce_bucket_size": 200_000_000}


def test_what_is_fixed_is_in_every_config(load: Load) -> None:
    space = load(rest="fixed: {contiguous_gradients: off}\n").on(CPU)
    for config in (
        space.baseline_config(),
        space.default_config("zero3"),
        space.resolve({"micro_batch": 2}),
    ):
        assert config.values["zero3.contiguous_gradients"] is False


def test_engine_defaults_replace_tuned_knobs_only(load: Load) -> None:
    space = load(
        "reduce_bucket_size: {low: 1, high: 1e9}",
        "micro_batch: {choices: [1, 4]}",
        rest="baseline: {reduce_bucket_size: 7, sub_group_size: 9, micro_batch: 4}\n",
    ).on(CPU)
    values = space.default_config("zero3").values
    assert values["zero3.reduce_bucket_size"] == 500_000_000
    assert values["zero3.sub_group_size"] == 9
    assert values["workload.micro_batch"] == 4


def test_a_tuned_cut_replaces_the_baselines(load: Load) -> None:
    space = load("micro_batch: {choices: [1, 2]}", rest="baseline: {max_tokens: 9000}\n").on(CPU)
    assert space.baseline_config().values["workload.micro_batch"] is None
    config = space.resolve({"micro_batch": 2})
    assert config.values["workload.max_tokens"] is None
    assert space.assignment_of(config) == {"micro_batch": 2}
    assert space.assignment_of(space.baseline_config()) is None


def test_assignment_of_refuses_other_untuned_values(load: Load) -> None:
    space = load().on(CPU)
    other = load(rest="fixed: {sub_group_size: 3}\n").on(CPU)
    config = other.resolve({"micro_batch": 1})
    assert space.assignment_of(config) is None
    assert other.assignment_of(config) == {"micro_batch": 1}


def test_contains_checks_names_types_and_values(load: Load) -> None:
    space = load("micro_batch: {choices: [1, 2]}", "reduce_bucket_size: {low: 1, high: 9, step: 2}")
    inside: dict[str, Any] = {"micro_batch": 1, "reduce_bucket_size": 3}
    assert space.contains(inside)
    for change in (
        {"micro_batch": 4},
        {"micro_batch": True},
        {"micro_batch": 1.0},
        {"reduce_bucket_size": 4},
        {"reduce_bucket_size": 11},
        {"other": 1},
    ):
        assert not space.contains({**inside, **change})
    assert not space.contains({"micro_batch": 1})


def test_constraints_refuse_what_is_false_only(load: Load) -> None:
    space = load(
        "stage3_prefetch_bucket_size: {low: 1, high: 1e10}",
        "max_tokens: {choices: [none, 9000]}",
        rest="constraints:\n  - stage3_prefetch_bucket_size <= stage3_max_live_parameters\n"
        "  - max_tokens > 9500\n",
    ).on(CPU)
    ok = space.resolve({"stage3_prefetch_bucket_size": 10, "max_tokens": None})
    assert space.violated(ok) is None
    large = space.resolve({"stage3_prefetch_bucket_size": 2 * 10**9, "max_tokens": None})
    broken = space.violated(large)
    assert broken is not None
    assert broken.text == "stage3_prefetch_bucket_size <= stage3_max_live_parameters"
    tokens = space.resolve({"stage3_prefetch_bucket_size": 10, "max_tokens": 9000})
    assert space.violated(tokens) == space.constraints[1]


class TestSeveralBackends:
    LINES = (
        "micro_batch: {choices: [1, 2]}",
        "reduce_bucket_size: {low: 1e5, high: 1e9, log: true, when: backend == zero3}",
        "reshard_after_forward: {choices: [true, false], when: micro_batch == 2}",
    )

    @pytest.fixture
    def space(self, load: Load) -> SearchSpace:
        return load(*self.LINES, backend="[zero3, fsdp2]").on(CPU)

    def test_a_knob_lives_under_its_backend(self, space: SearchSpace) -> None:
        zero = {"backend": "zero3", "micro_batch": 2, "reduce_bucket_size": 100_000}
        assert space.contains(zero)
        assert not any(name.startswith("fsdp2.") for name in space.resolve(zero).values)
        shard = {"backend": "fsdp2", "micro_batch": 2, "reshard_after_forward": False}
        assert space.contains(shard)
        assert space.contains({"backend": "fsdp2", "micro_batch": 1})
        assert not space.contains({"backend": "ddp", "micro_batch": 1})
        assert not space.contains({"micro_batch": 1})
        assert space.assignment_of(space.resolve(shard)) == shard
        assert space.project("fsdp2", {"workload.micro_batch": 9}) == {
            "backend": "fsdp2",
            "micro_batch": 2,
            "reshard_after_forward": True,
        }

    def test_the_baseline_has_the_first_backend_or_the_named_one(self, load: Load) -> None:
        assert load(*self.LINES, backend="[fsdp2, zero3]").baseline_config().backend == "fsdp2"
        named = load(*self.LINES, backend="[fsdp2, zero3]", rest="baseline: {backend: zero3}\n")
        assert named.baseline_config().backend == "zero3"

    def test_nothing_to_tune_but_the_backend(self, load: Load) -> None:
        from autotune.space.loader import parse_space

        space = parse_space(
            "version: 1\nbackend: [zero3, fsdp2]\n"
            "workload: {model: m, global_batch: 4}\nparams: {}\n",
            file="f",
        )
        assert space.contains({"backend": "fsdp2"})
