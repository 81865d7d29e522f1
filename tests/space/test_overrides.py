from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.errors import SpaceError
from autotune.space.model import Choices
from autotune.space.search_space import SearchSpace

Load = Callable[..., SearchSpace]


def choices(space: SearchSpace, index: int = 0) -> tuple[object, ...]:
    domain = space.params[index].domain
    assert isinstance(domain, Choices)
    return domain.values


def test_any_key_can_be_set(load: Load) -> None:
    space = load(
        overrides=(
            "workload.data.max_length=8192",
            "workload.model = qwen3-0.6b",
            "workload.precision={compute: bf16}",
            "search.max_trial_time=90s",
            "constraints=[micro_batch <= 4]",
            "fixed.zero3.overlap_comm=off",
            "baseline.reduce_bucket_size=5e8",
            "topology.processes=4",
        )
    )
    assert space.workload.data.max_length == 8192
    assert space.workload.model == "qwen3-0.6b"
    assert space.workload.precision.compute == "bf16"
    assert space.search.max_trial_time_s == 90
    assert [constraint.text for constraint in space.constraints] == ["micro_batch <= 4"]
    assert space.fixed == {"zero3.overlap_comm": False}
    assert space.baseline == {"zero3.reduce_bucket_size": 500_000_000}
    assert space.processes == 4


def test_parameters_are_set_whole_or_in_part_under_either_name(load: Load) -> None:
    assert choices(load(overrides=("params.micro_batch.choices=[1, 8]",))) == (1, 8)
    assert choices(load(overrides=("params.workload.micro_batch={choices: [4]}",))) == (4,)
    space = load(
        "zero3.overlap_comm: {choices: [on]}", overrides=("params.overlap_comm.choices=[off]",)
    )
    assert choices(space) == (False,)
    added = load(overrides=("params.zero3.overlap_comm={choices: [on, off]}",))
    assert [param.name for param in added.params] == ["micro_batch", "zero3.overlap_comm"]


def test_null_removes_a_key(load: Load) -> None:
    lines = ("micro_batch: {choices: [1]}", "overlap_comm: {choices: [on, off]}")
    space = load(*lines, overrides=("params.micro_batch=null", "fixed.micro_batch=2"))
    assert [param.name for param in space.params] == ["overlap_comm"]
    assert space.fixed == {"workload.micro_batch": 2}
    with pytest.raises(SpaceError, match=r"--set fixed\.micro_batch: there is no such key"):
        load(overrides=("fixed.micro_batch=null",))


def test_later_overrides_win(load: Load) -> None:
    space = load(overrides=("search.trials=3", "search.trials=4"))
    assert space.search.trials == 4


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("foo=1", "unknown key 'foo'"),
        ("workload.modle=x", "unknown key 'modle'"),
        ("params.micro_batches={choices: [1]}", "unknown knob 'micro_batches'"),
        ("workload.data.max_length=5x", "'5x' is not a number"),
        ("workload.data.max_length=", "there is no value"),
        ("workload.data.max_length", "there is no ="),
        ("=1", "empty part"),
        ("workload..data=1", "empty part"),
        ("workload.model.name=x", "model is a single value"),
        ("search.trials=[1,", "not YAML"),
        ("search.trials=010", "leading zero"),
        ("search.trials=!!python/name:os.system x", "the tag !!python/name:os.system"),
        ("search.trials=*a", r"the alias \*a has no anchor"),
        ("search={trials: 1, trials: 2}", "the key 'trials' stands twice"),
        ("constraints=[micro_batch <]", "ends too early"),
        ("x-note=3", "are notes"),
        ("version=2", "version 2 is not known"),
        ("backend=zero2", "unknown backend 'zero2'"),
    ],
)
def test_a_fault_names_the_override(load: Load, override: str, words: str) -> None:
    with pytest.raises(SpaceError, match=words) as caught:
        load(overrides=(override,))
    assert caught.value.exit_code == 2
    key = override.partition("=")[0] or override
    assert str(caught.value).startswith(f"space.yaml:1:1: --set {key}: ")


def test_removing_a_required_key_is_missed(load: Load) -> None:
    with pytest.raises(
        SpaceError, match=r"space\.yaml:3:11: the required key workload.global_batch"
    ):
        load(overrides=("workload.global_batch=null",))
