"""Values that no run and no JSON could hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.errors import SpaceError
from autotune.space.search_space import SearchSpace

Load = Callable[..., SearchSpace]


@pytest.mark.parametrize("value", [".inf", "-.Inf", ".NaN", "1e999", "-1e-999"])
def test_unverified_passes_no_number_that_json_cannot_hold(load: Load, value: str) -> None:
    with pytest.raises(SpaceError) as caught:
        load(rest=f"unverified: {{deepspeed: {{x: {value}}}}}\n")
    assert str(caught.value).startswith("space.yaml:6:29: ")
    assert value in str(caught.value)
    quoted = load(rest=f"unverified: {{deepspeed: {{x: '{value}'}}}}\n")
    assert quoted.unverified == {"deepspeed": {"x": value}}


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("optimizer: {eps: 0}", "eps must be at least 1e-37, found 0"),
        ("optimizer: {eps: 1e-50}", "eps must be at least 1e-37, found 1e-50"),
        ("data: {max_length: 1e8}", "max_length must be at most 16777216, found 1e8"),
        (f"optimizer: {{lr: {'9' * 400}}}", f"{'9' * 57}... is too large or too small"),
    ],
)
def test_values_that_nothing_could_run_with(load: Load, key: str, words: str) -> None:
    with pytest.raises(SpaceError) as caught:
        load(workload=f", {key}")
    assert words in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_trial_of_more_than_a_month(load: Load) -> None:
    with pytest.raises(SpaceError, match="max_trial_time must be at most 30d"):
        load(rest="search: {max_trial_time: 1e300d}\n")


def test_unverified_passes_no_auto(load: Load) -> None:
    """BUG-059: nothing would resolve it, and the export could not say what ran."""
    with pytest.raises(SpaceError, match="some_key: auto has no rule") as caught:
        load(rest="unverified: {deepspeed: {a: {some_key: auto}}}\n")
    assert str(caught.value).startswith("space.yaml:6:")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("zero_optimization: {reduce_bucket_size: auto}", "is a known knob"),
        ("gradient_clipping: auto", "workload.optimizer.gradient_clipping says it"),
    ],
)
def test_auto_for_a_known_setting_says_where_it_belongs(load: Load, keys: str, words: str) -> None:
    with pytest.raises(SpaceError, match=words):
        load(rest=f"unverified: {{deepspeed: {{{keys}}}}}\n")
