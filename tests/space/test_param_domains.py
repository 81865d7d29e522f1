from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autotune import registry
from autotune.errors import SpaceError
from autotune.knobs.knob import Knob
from autotune.space import domains
from autotune.space.model import Choices, FloatRange, IntRange
from autotune.space.search_space import SearchSpace

Load = Callable[..., SearchSpace]


def knob(name: str, kind: Any, default: Any, **more: Any) -> Knob:
    given: dict[str, Any] = {
        "owner": "other",
        "numerics": "neutral",
        "read_back": "parsed",
        "read_from": "nowhere",
        "source": "this test",
        "meaning": "none",
        **more,
    }
    return Knob(name=name, type=kind, default=default, **given)


class OtherBackend:
    """A backend of another package, with knob types that the shipped ones do not have."""

    name = "other"
    knobs = (
        knob("share", "float", 0.5, low=0.0),
        knob("pairs", "structure", None),
        knob("mode", "text", "off", choices=("off", "on", "no")),
        knob("zero_stage", "int", 3, choices=(), low=2, high=3),
        knob("bucket", "int", 5, low=0),
        knob("rounding", "bool", False, numerics="rounding"),
        knob("learning", "float", 0.1, numerics="work"),
    )


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(registry.BUILTIN["backends"], "other", f"{__name__}:OtherBackend")
    registry._table.cache_clear()
    yield "other"
    registry._table.cache_clear()


def domain(space: SearchSpace) -> Any:
    return space.params[0].domain


def fault(load: Load, *params: str, **more: Any) -> SpaceError:
    with pytest.raises(SpaceError) as caught:
        load(*params, **more)
    return caught.value


def test_exponents_of_every_spelling_are_numbers(load: Load) -> None:
    """BUG-001"""
    for low, high in (
        ("5e7", "5e8"),
        ("5.0e7", "5.0e8"),
        ("5e+7", "5e+8"),
        ("50_000_000", "'5e8'"),
    ):
        space = load(f"reduce_bucket_size: {{type: int, low: {low}, high: {high}, log: true}}")
        assert domain(space) == IntRange(low=50_000_000, high=500_000_000, log=True)
        assert type(domain(space).low) is int
    space = load("reduce_bucket_size: {type: int, low: 1, high: 1.5e8}")
    assert domain(space).high == 150_000_000


def test_a_float_param_reads_exponents(load: Load, other: str) -> None:
    """BUG-001"""
    space = load("share: {type: float, low: 1e-5, high: 1}", backend=other)
    assert domain(space) == FloatRange(low=0.00001, high=1.0)
    assert type(domain(space).high) is float


def test_an_int_bound_that_is_not_whole_names_file_line_and_key(load: Load) -> None:
    """BUG-001"""
    error = fault(load, "reduce_bucket_size: {type: int, low: 1.05e1, high: 5e8}")
    assert str(error) == (
        "space.yaml:5:40: low of reduce_bucket_size needs a whole number: "
        "1.05e1 is not a whole number"
    )


def test_words_stay_text_for_text_knobs(load: Load, other: str) -> None:
    """BUG-002"""
    assert domain(load("mode: {choices: [no, off, on]}", backend=other)).values == (
        "no",
        "off",
        "on",
    )


def test_an_unknown_word_of_a_text_knob_lists_the_known_ones(load: Load) -> None:
    """BUG-002"""
    error = fault(load, "activation_checkpointing: {choices: [off, full]}")
    assert "needs one of none, full, selective, found 'off'" in str(error)


def test_switches_read_words_as_true_and_false(load: Load) -> None:
    """BUG-002"""
    for on, off in (("on", "off"), ("yes", "no"), ("true", "false"), ("True", "FALSE")):
        values = domain(load(f"overlap_comm: {{choices: [{on}, {off}]}}")).values
        assert values == (True, False)
        assert all(type(value) is bool for value in values)


@pytest.mark.parametrize("choices", ["[on, auto]", "[true, 1]", "[0, 1]", "[y, n]", "[true, null]"])
def test_a_switch_takes_nothing_else(load: Load, choices: str) -> None:
    """BUG-002"""
    error = fault(load, f"overlap_comm: {{choices: {choices}}}")
    assert "overlap_comm needs true or false" in str(error)


def test_log_from_zero_offers_the_form_with_zero(load: Load) -> None:
    """BUG-005"""
    error = fault(load, "stage3_prefetch_bucket_size: {type: int, low: 0, high: 5e8, log: true}")
    assert str(error).startswith("space.yaml:5:49: ")
    assert "log needs low of at least 1" in str(error)
    assert error.hint == "write low: 1 with also: [0]"
    space = load("stage3_prefetch_bucket_size: {low: 1, high: 5e8, log: true, also: [0]}")
    assert domain(space) == IntRange(low=1, high=500_000_000, log=True, also=(0,))
    config = space.resolve({"stage3_prefetch_bucket_size": 0})
    value = config.values["zero3.stage3_prefetch_bucket_size"]
    assert (value, type(value)) == (0, int)


def test_float_log_from_zero_is_refused(load: Load, other: str) -> None:
    """BUG-005"""
    assert "log needs low above 0" in str(
        fault(load, "share: {low: 0, high: 1, log: true}", backend=other)
    )


def test_step_and_log_exclude_each_other(load: Load) -> None:
    """BUG-006"""
    error = fault(load, "micro_batch: {type: int, low: 2, high: 64, step: 2, log: true}")
    assert "micro_batch has log and step" in str(error)
    assert error.hint is not None
    assert "choices: [1, 2, 4, 8]" in error.hint


def test_a_step_that_does_not_divide_names_the_usable_values(load: Load) -> None:
    """BUG-006"""
    error = fault(load, "micro_batch: {type: int, low: 1, high: 10, step: 4}")
    assert "usable are 1, 5, 9; 10 cannot occur" in str(error)
    assert error.hint == "write high: 9"
    long = fault(load, "micro_batch: {type: int, low: 1, high: 1000, step: 2}")
    assert "usable are 1, 3, 5, 7, …, 999; 1000 cannot occur" in str(long)


def test_decimal_steps_are_exact_and_reach_the_top(load: Load, other: str) -> None:
    """BUG-006"""
    found = domain(load("share: {type: float, low: 0.1, high: 0.7, step: 0.1}", backend=other))
    values = domains.grid(found.low, found.step, domains.steps_of(found))
    assert [str(value) for value in values] == ["0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7"]
    assert all(domains.contains(found, value) for value in values)
    assert not domains.contains(found, 0.1 + 0.2)


def test_decimal_step_that_does_not_divide(load: Load, other: str) -> None:
    """BUG-006"""
    error = fault(load, "share: {low: 0.1, high: 0.75, step: 0.1}", backend=other)
    assert error.hint == "write high: 0.7"


def test_tuned_bounds_beyond_doubles_are_refused_and_fixed_ones_pass(load: Load) -> None:
    """BUG-007"""
    name, top = "stage3_model_persistence_threshold", 9_223_372_036_854_775_807
    error = fault(load, f"{name}: {{type: int, low: 1, high: {top}, log: true}}")
    assert "above 2**53 = 9007199254740992" in str(error)
    assert domain(load(f"{name}: {{low: 1, high: 9007199254740992}}")).high == 2**53
    space = load(rest=f"fixed: {{{name}: {top}}}\n")
    assert space.baseline_config().values[f"zero3.{name}"] == top


def test_more_than_64_bits_is_no_value(load: Load) -> None:
    """BUG-007"""
    error = fault(load, "reduce_bucket_size: {choices: [1, 9223372036854775808]}")
    assert "must be at most 9223372036854775807" in str(error)


def test_neighbouring_large_choices_stay_apart(load: Load) -> None:
    """BUG-007"""
    space = load("reduce_bucket_size: {choices: [500000003, 500000001]}")
    config = space.resolve({"reduce_bucket_size": 500_000_003})
    assert config.values["zero3.reduce_bucket_size"] == 500_000_003
    assert config.key != space.resolve({"reduce_bucket_size": 500_000_001}).key


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ("[1, true, '1', null]", "'true' is not a number"),
        ("[1, '1']", "micro_batch has 1 twice"),
        ("[2, 2.0]", "micro_batch has 2 twice"),
        ("[1, none]", "'none' is not a number"),
        ("[1, [2]]", "found a list"),
        ("[1, {a: 2}]", "found a mapping"),
        ("[]", "micro_batch has no choices"),
        ("{a: 1}", "choices of micro_batch needs a list"),
        ("1", "choices of micro_batch needs a list"),
        ("[1, , 2]", "this is not YAML"),
        ("[1, ]", ""),
        ("[0]", "must be at least 1"),
    ],
)
def test_choices_of_mixed_or_equal_values(load: Load, choices: str, words: str) -> None:
    """BUG-009"""
    line = f"micro_batch: {{choices: {choices}}}"
    if words:
        assert words in str(fault(load, line))
    else:
        assert domain(load(line)).values == (1,)


def test_one_and_true_are_ambiguous_where_both_are_legal(load: Load, other: str) -> None:
    """BUG-009"""
    error = fault(load, "pairs: {choices: [1, true]}", backend=other)
    assert "pairs has 1 and true, which compare as equal" in str(error)
    error = fault(load, "pairs: {choices: [1, '1']}", backend=other)
    assert "pairs has 1 and 1, which compare as equal" in str(error)


def test_structured_choices_have_stable_labels_and_come_back_whole(load: Load, other: str) -> None:
    """BUG-009"""
    space = load("pairs: {choices: [[0.9, 0.95], {b: 1, a: [x, null]}, 3]}", backend=other)
    found = domain(space)
    assert isinstance(found, Choices)
    assert found.labels == ("[0.9,0.95]", '{"a":["x",null],"b":1}', "3")
    assert space.resolve({"pairs": [0.9, 0.95]}).values["other.pairs"] == [0.9, 0.95]
    again = load("pairs: {choices: [[0.9, 0.95], {a: [x, null], b: 1}, 3]}", backend=other)
    assert again.params[0].domain == found


def test_quoted_numbers_of_int_knobs_are_integers(load: Load) -> None:
    """BUG-056"""
    values = domain(load("micro_batch: {choices: ['8', '16']}")).values
    assert values == (8, 16)
    assert all(type(value) is int for value in values)


def test_a_knob_of_several_types(load: Load) -> None:
    space = load("reshard_after_forward: {choices: [true, off, 2]}", backend="fsdp2")
    assert domain(space).values == (True, False, 2)
    assert domain(space).labels == ("true", "false", "2")
    with pytest.raises(SpaceError, match="at least 2"):
        load("reshard_after_forward: {choices: [true, 1]}", backend="fsdp2")


def test_what_changes_rounding_needs_permission(load: Load, other: str) -> None:
    line = "rounding: {choices: [true, false]}"
    error = fault(load, line, backend=other)
    assert error.hint == "write search: {allow: [rounding]}"
    space = load(line, backend=other, rest="search: {allow: [rounding]}\n")
    assert space.search.allow == ("other.rounding",)
    assert "changes the work" in str(fault(load, "learning: {low: 0, high: 1}", backend=other))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("{low: 9, high: 2}", "empty range: low 9 is above high 2"),
        ("{low: 1}", "micro_batch has no high"),
        ("{high: 1}", "micro_batch has no low"),
        ("{}", "micro_batch has no low"),
        ("{low: 1, high: 8, step: 0}", "step of micro_batch must be at least 1"),
        ("{low: 1, high: 8, also: [4]}", "4 lies in the range 1 … 8"),
        ("{low: 1, high: 8, also: [16, 16]}", "has 16 twice"),
        ("{low: 1, high: 8, also: 16}", "also of micro_batch needs a list"),
        ("{low: 1, high: 8, log: maybe}", "log of micro_batch needs true or false"),
        ("{low: 1, high: 1e400}", "too large"),
        ("{low: 1, high: .inf}", "'.inf' is not a number"),
        ("{low: 010, high: 20}", "leading zero as octal"),
        ("{low: 1:30, high: 200}", "base 60"),
        ("{low: 0x10, high: 20}", "hexadecimal"),
        ("{low: '1,000', high: 2000}", "thousands mark"),
        ("{low: 1, high: two}", "'two' is not a number"),
        ("{low: 1, high: }", "high of micro_batch needs a whole number, found nothing"),
        ("{low: 1, high: [2]}", "found a list"),
        ("{low: 0, high: 8}", "low of micro_batch must be at least 1"),
        ("{choices: [1], low: 1}", "a list or a range, not both"),
        ("{type: float, low: 1, high: 2}", "micro_batch is a whole number, not float"),
        ("{type: integer, low: 1, high: 2}", "type of micro_batch needs one of int"),
        ("{min: 1, high: 2}", "unknown key 'min'"),
        ("{low: 1, high: 2, lgo: true}", "unknown key 'lgo'"),
        ("[1, 2]", "needs a mapping, found a list"),
        ("4", "needs a mapping, found '4'"),
        ("", "needs a mapping, found nothing"),
    ],
)
def test_ranges_that_cannot_be(load: Load, spec: str, words: str) -> None:
    error = fault(load, f"micro_batch: {spec}")
    assert words in str(error)
    assert str(error).startswith("space.yaml:5:")


def test_x_names_hold_notes_in_a_parameter(load: Load) -> None:
    assert domain(load("micro_batch: {choices: [1], x-why: memory}")).values == (1,)


def test_nearest_value() -> None:
    sizes = IntRange(low=1000, high=10**6, log=True, also=(0,))
    assert [domains.nearest(sizes, w) for w in (0, 10**9, 5000, 30, True)] == [
        0,
        10**6,
        5000,
        1000,
        1000,
    ]
    stepped = IntRange(low=1, high=9, step=4)
    assert [domains.nearest(stepped, w) for w in (0, 4, 6, 100)] == [1, 5, 5, 9]
    choices = Choices(values=(1, 2, 8), labels=("1", "2", "8"))
    assert [domains.nearest(choices, w) for w in (8, 3, 100, "x", None)] == [8, 2, 8, 1, 1]
    assert domains.nearest(FloatRange(low=0.1, high=0.7, step=0.1), 0.44) == 0.4
