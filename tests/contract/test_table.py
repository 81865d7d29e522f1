"""Tables: read as written, found by configuration, refused where they are none."""

from __future__ import annotations

import dataclasses
import gzip
import math
from pathlib import Path
from typing import Any

import pytest

from autotune.contract import table as t
from autotune.contract.outcome import Failure, RankMeasurement, RankRecord
from autotune.contract.plan import CheckPoint, Measuring, Topology
from autotune.errors import InputError, SchemaTooNewError

HEADER = t.TableHeader(
    name="demo",
    recorded_at="2026-11-30T00:00:00+00:00",
    grid="version: 1\n",
    grid_fingerprint="f",
    num_configs=2,
    baseline_key="a",
    depth=t.Depth(layers=8, of=36),
    workload={"distinct_batches": 2},
    topology=Topology(processes=1, device="cpu", devices_per_node=1),
    environment={"python": "3.11"},
    devices=(),
    host_memory_bytes=1,
    measuring=Measuring(
        warmup_tolerance=0.1,
        warmup_max_cycles=1,
        interval_share=0.0,
        window_s=1.0,
        window_iterations=4,
    ),
    memory_margin_share=0.05,
    seed=0,
)
CONFIG = {"fsdp2.layers_per_unit": 1, "workload.micro_batch": 2, "workload.max_tokens": None}


def rank(seconds: float) -> RankRecord:
    return RankRecord(
        rank=0,
        pid=0,
        plan_digest="",
        status="measured",
        phase="teardown",
        started_at=1.0,
        ended_at=2.0,
        phase_s={"measure": 1.0},
        measurement=RankMeasurement(
            warmup_s=(0.2, 0.1),
            iteration_s=(seconds,) * 4,
            window_s=seconds * 4,
            unsteady=False,
            checks=(CheckPoint(loss=6.0, grad_norm=1.0),),
            final_loss=5.9,
            peak_timed_bytes=1,
            peak_worst_case_bytes=1,
            memory_limit_bytes=10,
            read_back={},
            implementations={"attention": "sdpa"},
        ),
    )


def row(key: str, seconds: float | None = 0.1, **changes: Any) -> t.TableRow:
    made = t.TableRow(
        launch=0,
        key=key,
        backend="fsdp2",
        params={"layers_per_unit": 1},
        config=CONFIG,
        submitted_at=1.0,
        wall_s=2.0,
        overhead_s=1.0,
        failure=None if seconds is not None else Failure(kind="hang", reason="why", rank=0),
        s_per_it=seconds,
        ranks=() if seconds is None else (rank(seconds),),
    )
    return dataclasses.replace(made, **changes)


def written(path: Path, *rows: t.TableRow, tail: bytes = b"") -> Path:
    path.write_bytes(b"".join(map(t.to_line, (HEADER, *rows))) + tail)
    return path


def test_a_table_is_read_as_it_was_written_packed_or_not(tmp_path: Path) -> None:
    rows = (row("a"), row("b", None), row("a", 0.11, repeat=1, launch=2))
    plain = written(tmp_path / "t.jsonl", *rows)
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        found = t.read_table(path)
        assert (found.header, found.rows) == (HEADER, rows)
    assert t.read_table(plain).digest == t.read_table(packed).digest


def test_a_line_that_was_being_written_is_not_read(tmp_path: Path) -> None:
    half = t.to_line(row("b"))[:-1]
    assert t.read_table(written(tmp_path / "t.jsonl", row("a"), tail=half)).rows == (row("a"),)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not even a first line"),
        (b"no json\n", "line 1: not a JSON record"),
        (b"{}\n", "line 1: key 'name' is missing"),
        (b"\x1f\x8bnot gzip", "cannot be read"),
        (gzip.compress(t.to_line(HEADER))[:-20], "cannot be read"),
        (t.to_line(HEADER) + b'{"launch": 1}\n', "line 2: key"),
        (t.to_line(HEADER) + t.to_line(row("a")) + b"\n", "line 3: not a JSON record"),
    ],
)
def test_what_is_no_table_is_refused_with_its_line(
    content: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        t.read_table(path)


def test_a_missing_table_and_one_of_a_newer_version_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no table"):
        t.read_table(tmp_path / "t.jsonl")
    newer = t.to_line(HEADER).replace(b'"schema_version":1', b'"schema_version":2')
    (tmp_path / "t.jsonl").write_bytes(newer)
    with pytest.raises(SchemaTooNewError, match="version 2"):
        t.read_table(tmp_path / "t.jsonl")


def test_a_table_that_unpacks_without_end_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(t, "MAX_BYTES", 1000)
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(b" " * 1_000_000))
    with pytest.raises(InputError, match="larger than any table"):
        t.read_table(path)


def make(*rows: t.TableRow) -> t.Table:
    return t.Table(path=Path("t"), digest="d", header=HEADER, rows=rows)


def test_launches_are_found_by_key_the_first_one_first() -> None:
    again, first = row("a", 0.11, repeat=1, launch=5), row("a")
    table = make(again, row("b"), first)
    assert table.launches("a", "fsdp2", {}, ()) == (first, again)
    assert table.launches("c", "fsdp2", {}, ()) == ()


def test_without_the_key_a_configuration_is_found_by_its_knobs() -> None:
    two = {**CONFIG, "fsdp2.layers_per_unit": 2}
    table = make(row("a"), row("b", config=two))
    new = {**two, "kernel.norm": "torch"}
    assert table.launches("other", "fsdp2", new, ("fsdp2.layers_per_unit",)) == (table.rows[1],)
    # What is new is tuned: the table cannot say at which value it was.
    assert table.launches("other", "fsdp2", new, ("kernel.norm",)) == ()
    assert table.launches("other", "zero3", new, ()) == ()
    assert table.launches("other", "fsdp2", {**new, "fsdp2.layers_per_unit": True}, ()) == ()


def test_a_dead_knob_does_not_tell_configurations_apart() -> None:
    table = make(row("a", dead=("fsdp2.layers_per_unit",)))
    assert table.launches("other", "fsdp2", {**CONFIG, "fsdp2.layers_per_unit": 4}, ()) != ()


def test_what_was_launched_with_a_knob_that_is_not_named_is_another_configuration() -> None:
    table = make(row("a", config={**CONFIG, "env.NCCL_MAX_CTAS": 8}))
    assert table.launches("other", "fsdp2", CONFIG, ()) == ()
    dead = make(row("a", config={**CONFIG, "env.NCCL_MAX_CTAS": 8}, dead=("env.NCCL_MAX_CTAS",)))
    assert dead.launches("other", "fsdp2", CONFIG, ()) == dead.rows


def test_two_that_could_be_meant_are_none() -> None:
    name = "fsdp2.gone"
    table = make(*(row(key, config={**CONFIG, name: key}, dead=(name,)) for key in "ab"))
    assert table.launches("other", "fsdp2", CONFIG, ()) == ()


def test_the_spread_between_launches_is_that_of_the_repeats() -> None:
    apart = math.exp(0.02)
    table = make(
        row("a", 1.0), row("a", apart, repeat=1), row("b", 1.0), row("b", 1 / apart, repeat=1)
    )
    assert table.spread == pytest.approx(0.02 / math.sqrt(2))
    assert make(row("a"), row("b")).spread == 0.0
    assert make(row("a", None), row("a", 0.1, repeat=1)).spread == 0.0


def test_a_row_has_either_a_time_or_a_failure() -> None:
    with pytest.raises(ValueError, match="either a time or a failure"):
        row("a", failure=Failure(kind="hang", reason="why"))
    with pytest.raises(ValueError, match="either a time or a failure"):
        row("a", None, failure=None)
