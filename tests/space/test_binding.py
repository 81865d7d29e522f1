from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.contract.plan import Topology
from autotune.errors import SpaceError
from autotune.space.model import Choices, IntRange, Limits
from autotune.space.search_space import SearchSpace

Load = Callable[..., SearchSpace]


def on(space: SearchSpace, processes: int) -> SearchSpace:
    return space.on(Topology(processes=processes, device="cpu", devices_per_node=processes))


def values(space: SearchSpace, index: int = 0) -> tuple[object, ...]:
    domain = space.params[index].domain
    assert isinstance(domain, Choices)
    return domain.values


def test_rows_that_do_not_divide_are_dropped_in_words(load: Load) -> None:
    space = on(load("micro_batch: {choices: [1, 2, 3, 8, 16]}"), 2)
    assert values(space) == (1, 2, 8)
    assert [(item.value, item.reason) for item in space.dropped] == [
        (3, "global_batch 16 is not divisible by micro_batch 3 × 2 processes = 6"),
        (16, "global_batch 16 is not divisible by micro_batch 16 × 2 processes = 32"),
    ]


def test_no_rows_left_is_an_error_at_the_parameter(load: Load) -> None:
    with pytest.raises(SpaceError, match="no choice of micro_batch is left") as caught:
        on(load("micro_batch: {choices: [3, 5]}"), 2)
    assert str(caught.value).startswith("space.yaml:5:3: ")
    assert caught.value.hint == "micro_batch must divide 8, the samples of each process"
    assert caught.value.exit_code == 2


def test_a_batch_that_the_processes_do_not_divide(load: Load) -> None:
    with pytest.raises(SpaceError, match="no choice of micro_batch is left") as caught:
        on(load(), 3)
    assert caught.value.hint is not None
    assert "choose a global_batch that the 3 processes divide" in caught.value.hint
    with pytest.raises(SpaceError, match="global_batch 16 is not divisible") as caught:
        on(load("overlap_comm: {choices: [on, off]}"), 3)
    assert str(caught.value).startswith("space.yaml:3:45: ")


def test_a_range_of_rows_keeps_what_divides(load: Load) -> None:
    space = on(load("micro_batch: {type: int, low: 2, high: 1e9, also: [1]}"), 2)
    assert values(space) == (1, 2, 4, 8)
    assert space.dropped[0].reason == "only 1, 2, 4, 8 can hold on 2 processes"
    assert values(on(load("micro_batch: {low: 1, high: 2}"), 2)) == (1, 2)
    with pytest.raises(SpaceError, match="no choice of micro_batch is left"):
        on(load("micro_batch: {low: 9, high: 12}"), 2)


@pytest.mark.parametrize(
    ("rest", "place"),
    [("fixed: {micro_batch: 3}", "6:22"), ("baseline: {micro_batch: 3}", "6:25")],
)
def test_impossible_rows_of_fixed_or_baseline(load: Load, rest: str, place: str) -> None:
    space = load("overlap_comm: {choices: [on, off]}", rest=rest + "\n")
    with pytest.raises(SpaceError, match="micro_batch 3 cannot be: global_batch 16") as caught:
        on(space, 2)
    assert str(caught.value).startswith(f"space.yaml:{place}: ")


def test_token_limits_must_hold_the_longest_sample(load: Load) -> None:
    work = ", data: {max_length: 512}, max_tokens: 1024"
    space = on(load("max_tokens: {choices: [256, 512, 2048]}", workload=work), 2)
    assert values(space) == (512, 2048)
    assert space.dropped[0].reason == (
        "a sample can have max_length 512 tokens, more than max_tokens 256"
    )
    ranged = on(load("max_tokens: {low: 100, high: 2000, step: 100}", workload=work), 2)
    assert ranged.params[0].domain == IntRange(low=600, high=2000, step=100)
    with pytest.raises(SpaceError, match="no choice of max_tokens is left"):
        on(load("max_tokens: {low: 10, high: 511}", workload=work), 2)
    with pytest.raises(SpaceError, match="max_tokens 1024 cannot be"):
        on(load("overlap_comm: {choices: [on, off]}", workload=", max_tokens: 1024"), 2)


def test_tokens_need_no_divisible_batch(load: Load) -> None:
    space = load("overlap_comm: {choices: [on, off]}", rest="fixed: {max_tokens: 1e4}\n")
    config = on(space, 3).baseline_config()
    assert config.values["workload.max_tokens"] == 10_000
    assert config.values["workload.micro_batch"] is None


PACKED = "batching: {choices: [padded, packed]}"
REASON = "linear attention runs a fallback without boundaries"


def refused(space: SearchSpace) -> SearchSpace:
    topology = Topology(processes=2, device="cpu", devices_per_node=2)
    return space.on(topology, Limits(packing=REASON))


def test_packed_is_dropped_with_the_models_reason(load: Load) -> None:
    work = ", data: {max_length: 512}, max_tokens: 1024"
    space = refused(load(PACKED, workload=work))
    assert values(space) == ("padded",)
    assert [(item.value, item.reason) for item in space.dropped] == [("packed", REASON)]
    with pytest.raises(SpaceError, match="no choice of batching is left"):
        refused(load("batching: {choices: [packed]}", workload=work))
    with pytest.raises(SpaceError, match="batching packed cannot be: linear") as caught:
        refused(load(workload=", batching: packed"))
    assert str(caught.value).startswith("space.yaml:3:")


def test_packed_is_cut_by_tokens_only(load: Load) -> None:
    work = ", data: {max_length: 512}, max_tokens: 1024"
    assert values(on(load(PACKED, workload=work), 2)) == ("padded", "packed")
    space = on(load(PACKED), 2)
    assert values(space) == ("padded",)
    assert "it is cut by max_tokens" in space.dropped[0].reason
    tuned = ("max_tokens: {choices: [1024, 2048]}", PACKED)
    assert values(on(load(*tuned, workload=", data: {max_length: 512}"), 2), 1) == (
        "padded",
        "packed",
    )
    with pytest.raises(SpaceError, match="batching packed cannot be: it is cut") as caught:
        on(load("overlap_comm: {choices: [on, off]}", workload=", batching: packed"), 2)
    assert str(caught.value).startswith("space.yaml:3:")
    # The baseline itself needs a limit, also where the limit is tuned.
    limit = "max_tokens: {choices: [1024]}"
    with pytest.raises(SpaceError, match="batching packed cannot be"):
        on(load(limit, workload=", data: {max_length: 512}, batching: packed"), 2)


def test_reshard_groups_must_divide_the_processes(load: Load) -> None:
    line = "reshard_after_forward: {choices: [true, false, 2, 3, 4]}"
    space = on(load(line, backend="fsdp2"), 4)
    assert values(space) == (True, False, 2)
    assert {item.value: item.reason for item in space.dropped} == {
        3: "it does not divide the 4 processes",
        4: "on 4 processes it is the same as true",
    }
    ranged = on(load("reshard_after_forward: {low: 2, high: 8}", backend="fsdp2"), 16)
    assert values(ranged) == (2, 4, 8)


def test_binding_again_starts_from_the_file(load: Load) -> None:
    space = load("micro_batch: {choices: [1, 2, 8]}")
    once = on(space, 16)
    assert values(once) == (1,)
    again = on(once, 2)
    assert values(again) == (1, 2, 8)
    assert again.dropped == ()
    assert once.fingerprint == space.fingerprint == again.fingerprint
    assert once.differences(again) == ()


def test_a_baseline_without_a_cut_of_its_own_beside_tuned_tokens(load: Load) -> None:
    tokens = "max_tokens: {choices: [9000]}"
    with pytest.raises(SpaceError, match="micro_batch 1 cannot be") as caught:
        on(load(tokens), 3)
    assert caught.value.hint == "say how the baseline is cut, as in baseline: {max_tokens: 8192}"
    assert on(load(tokens, rest="baseline: {max_tokens: 8192}\n"), 3).params
