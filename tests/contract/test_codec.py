import dataclasses
import math
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from study_factory import measured

from autotune.contract import codec, jsonfile
from autotune.contract.outcome import Outcome, ReadBack
from autotune.contract.plan import CheckPoint, Measuring
from autotune.errors import RecordError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    count: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    flag: bool = False
    count: int = 0
    share: float = 0.0
    name: str = ""
    mode: Literal["a", "b", 3] = "a"
    maybe: float | None = None
    many: tuple[float, ...] = ()
    named: dict[str, float] = dataclasses.field(default_factory=dict)
    inner: Inner | None = None
    inners: tuple[Inner, ...] = ()
    anything: Any = None


FULL = Record(
    flag=True,
    count=2**70,
    share=0.1,
    name="é\n\ud800",
    mode=3,
    maybe=1.5,
    many=(1.0, 2.5),
    named={"x": 1.0},
    inner=Inner(count=1),
    inners=(Inner(count=1), Inner(count=2)),
    anything={"a": [1, None, True, "t", 0.5]},
)


def test_a_record_returns_as_it_was_through_a_file(tmp_path):
    path = tmp_path / "r.json"
    jsonfile.write_json(path, codec.to_json(FULL))
    assert codec.from_json(Record, jsonfile.read_json(path)) == FULL


@given(
    st.builds(
        Record,
        flag=st.booleans(),
        count=st.integers(),
        share=st.floats(allow_nan=False, allow_infinity=False),
        maybe=st.none() | st.floats(allow_nan=False, allow_infinity=False),
        many=st.lists(st.floats(allow_nan=False, allow_infinity=False)).map(tuple),
        name=st.text(),
        anything=st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(),
            lambda x: st.lists(x) | st.dictionaries(st.text(), x),
            max_leaves=5,
        ),
    )
)
def test_any_record_returns_with_its_types(record):
    back = codec.from_json(Record, codec.to_json(record))
    assert back == record
    assert jsonfile.canonical(codec.to_json(back)) == jsonfile.canonical(codec.to_json(record))


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ({"flag": 1}, "record.flag: expected true or false, found 1"),
        ({"flag": "true"}, "record.flag: expected true or false, found 'true'"),
        ({"count": True}, "record.count: expected an integer, found True"),
        ({"count": 8.0}, "record.count: expected an integer, found 8.0"),
        ({"count": "8"}, "record.count: expected an integer, found '8'"),
        ({"share": True}, "record.share: expected a finite number, found True"),
        ({"share": "0.5"}, "record.share: expected a finite number, found '0.5'"),
        ({"share": math.nan}, "record.share: expected a finite number, found nan"),
        ({"share": 10**400}, "record.share: expected a finite number"),
        ({"name": 3}, "record.name: expected text, found 3"),
        ({"mode": "c"}, "record.mode: expected one of 'a', 'b', 3, found 'c'"),
        ({"mode": 3.0}, "record.mode: expected one of 'a', 'b', 3, found 3.0"),
        ({"maybe": "x"}, "record.maybe: expected a finite number, found 'x'"),
        ({"many": 3}, "record.many: expected a list, found 3"),
        ({"many": "ab"}, "record.many: expected a list, found 'ab'"),
        ({"many": [1.0, None]}, "record.many[1]: expected a finite number, found None"),
        ({"named": []}, "record.named: expected an object, found a list"),
        ({"named": {"x": "y"}}, "record.named.x: expected a finite number, found 'y'"),
        ({"inner": {"count": "1"}}, "record.inner.count: expected an integer, found '1'"),
        ({"inner": {}}, "record.inner: key 'count' is missing"),
        ({"inners": [{"count": 1}, {"count": 2, "z": 3}]}, "record.inners[1]: unknown key 'z'"),
        ({"anything": [math.inf]}, "not finite"),
        ({"latency": 1}, "record: unknown key 'latency'"),
        ([], "record: expected an object, found a list"),
        (None, "record: expected an object, found None"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(data, place):
    with pytest.raises(RecordError) as caught:
        codec.from_json(Record, data)
    assert place in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_not_written(value):
    with pytest.raises(RecordError, match="not finite"):
        codec.to_json(Record(share=value))
    with pytest.raises(RecordError, match="not finite"):
        codec.to_json({"deep": [{"x": value}]})


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", 1j])
def test_only_plain_data_is_written(value):
    with pytest.raises(RecordError, match="cannot be recorded"):
        codec.to_json(Record(anything=value))


def test_an_integer_in_a_float_field_has_the_digest_that_a_reader_computes():
    """The ranks compare the plan's digest with the coordinator's before they start."""
    rules = Measuring(
        warmup_tolerance=1,
        warmup_max_cycles=4,
        interval_share=0.01,
        window_s=20,
        window_iterations=40,
    )
    written = codec.to_json(rules)
    read = codec.to_json(codec.from_json(Measuring, written))
    assert jsonfile.digest(written) == jsonfile.digest(read)
    assert isinstance(written["window_s"], float)
    assert written["window_iterations"] == 40
    assert not isinstance(written["window_iterations"], float)
    other = codec.to_json(Record(many=(1, 2), named={"x": 3}, maybe=4, anything=5, flag=True))
    assert jsonfile.canonical(other["many"]) == "[1.0,2.0]"
    assert jsonfile.canonical([other["named"]["x"], other["maybe"]]) == "[3.0,4.0]"
    assert jsonfile.canonical([other["anything"], other["flag"]]) == "[5,true]"


def test_data_nested_too_deeply_is_a_record_error():
    data: Any = None
    for _ in range(5000):
        data = [data]
    with pytest.raises(RecordError, match="nested too deeply"):
        codec.from_json(Record, {"anything": data})


def test_a_value_that_the_class_itself_refuses_is_a_record_error():
    outcome = {
        "plan_digest": "d", "state": "complete", "submitted_at": 0.0, "wall_s": 1.0,
        "overhead_s": 1.0, "timed_s": 0.0,
    }  # fmt: skip
    with pytest.raises(RecordError, match="'complete' and measurement do not fit together"):
        codec.from_json(Outcome, outcome, where="outcome.json")


def test_fixed_tuples_are_a_mistake_of_the_programmer():
    @dataclasses.dataclass
    class Pair:
        pair: tuple[int, str]

    with pytest.raises(TypeError):
        codec._decode(tuple[int, str], [1, "x"], "record")


@pytest.mark.parametrize(
    ("requested", "actual", "same"),
    [
        (500_000_000, 500_000_000, True),
        (500_000_000, 5e8, True),
        (True, True, True),
        (True, 1, False),
        (0, False, False),
        ("none", "none", True),
        (1, "1", False),
        (None, None, True),
        (1, None, False),
        (2**53 + 1, 2**53, False),
    ],
)
def test_read_back_compares_type_and_value(requested, actual, same):
    assert ReadBack(requested=requested, actual=actual, level="live").in_effect is same


def test_checkpoints_take_no_infinity():
    with pytest.raises(RecordError):
        codec.to_json(CheckPoint(loss=math.inf, grad_norm=1.0))


@pytest.mark.parametrize("seconds", [1e308, 1e-308, 1e13])
def test_a_time_that_no_trial_can_have_is_a_record_error(seconds):
    """The quotient of two such numbers would be zero or infinite."""
    good = codec.to_json(measured(0.5))
    with pytest.raises(RecordError, match="s_per_it is no time that a trial can have"):
        codec.from_json(
            Outcome, good | {"measurement": {**good["measurement"], "s_per_it": seconds}}
        )
