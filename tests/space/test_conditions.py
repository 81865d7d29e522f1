"""Conditions that can be seen never to hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.errors import SpaceError
from autotune.space.search_space import SearchSpace

Load = Callable[..., SearchSpace]
ROWS = "micro_batch: {choices: [1, 2]}"


def tuned(space: SearchSpace) -> list[str]:
    return [param.name for param in space.params]


@pytest.mark.parametrize(
    ("condition", "rest", "never"),
    [
        ("overlap_comm == true", "fixed: {overlap_comm: false}\n", True),
        ("overlap_comm == true", "fixed: {overlap_comm: true}\n", False),
        ("micro_batch == 3", "", True),
        ("micro_batch == 2", "", False),
        ("micro_batch > 1 and overlap_comm", "fixed: {overlap_comm: false}\n", True),
        ("micro_batch > 2 or overlap_comm", "fixed: {overlap_comm: true}\n", False),
        ("false", "", True),
        ("true", "", False),
    ],
)
def test_a_parameter_whose_condition_never_holds_is_dropped_in_words(
    load: Load, condition: str, rest: str, never: bool
) -> None:
    space = load(ROWS, f"sub_group_size: {{choices: [1, 2], when: {condition}}}", rest=rest)
    assert tuned(space) == (["micro_batch"] if never else ["micro_batch", "sub_group_size"])
    reason = f"its condition {condition} is never true"
    assert [(item.param, item.reason) for item in space.dropped] == (
        [("sub_group_size", reason)] if never else []
    )


def test_nothing_is_claimed_of_ranges_and_of_conditional_names(load: Load) -> None:
    space = load(
        "reduce_bucket_size: {low: 1, high: 9}",
        "micro_batch: {choices: [1, 2], when: reduce_bucket_size > 99}",
        "sub_group_size: {choices: [1, 2], when: micro_batch == 7}",
    )
    assert tuned(space) == ["reduce_bucket_size", "micro_batch", "sub_group_size"]


def test_the_backend_may_be_named_where_it_is_tuned_only(load: Load) -> None:
    with pytest.raises(SpaceError, match="constraint: the backend is always zero3 here") as caught:
        load(rest="constraints: [backend == fsdp2]\n")
    assert str(caught.value).startswith("space.yaml:6:15: ")
    both = load(ROWS, backend="[zero3, fsdp2]", rest="constraints: [backend == fsdp2]\n")
    assert len(both.constraints) == 1
