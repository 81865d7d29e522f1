"""``benchmarks/tables.py`` with real ranks: recorded, stopped, resumed, refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import pytest

from autotune.contract.outcome import Failure, RankError, RankRecord
from autotune.contract.plan import Topology
from autotune.contract.table import Table, parse, read_table
from autotune.models.presets import PRESETS
from autotune.search.proposals import list_assignments
from autotune.space.loader import load_space

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "tables.py"
GRIDS = ROOT / "benchmarks" / "tables"
SMALL = (
    "--set", "params.layers_per_unit=null", "--set", "params.reshard_after_forward=null",
    "--set", "params.micro_batch.choices=[1, 4]",
)  # fmt: skip
"""Four configurations of the tiny grid."""
WAIT_S = 120.0


def start(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), "qwen3-tiny-fsdp2", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(*words: str) -> tuple[int, str]:
    process = start(*words)
    said, _ = process.communicate(timeout=WAIT_S)
    return process.returncode, said


def rows_of(path: Path) -> int:
    return len(path.read_bytes().splitlines()) - 1 if path.exists() else 0


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partial table, whose recording was stopped by SIGTERM while a launch ran."""
    path = tmp_path_factory.mktemp("tables") / "t.jsonl"
    process = start("--output", str(path), *SMALL)
    deadline = time.monotonic() + WAIT_S
    while rows_of(path) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, said
    assert "the same command goes on" in said
    return path


@pytest.fixture(scope="module")
def recorded(stopped: Path) -> tuple[Table, str, bytes]:
    """The table that the same command completed, what it said, and what there was before."""
    before = stopped.read_bytes()
    # What a power failure leaves of a line that was being written.
    stopped.write_bytes(before + b'{"launch": 99, "rep')
    code, said = run("--output", str(stopped), *SMALL, "--repeat", "2")
    assert code in (0, 1), said  # 1: a busy CPU does not keep the mark
    assert not stopped.exists()
    return read_table(stopped.with_name("t.jsonl.gz")), said, before


def test_a_recording_that_is_stopped_keeps_every_whole_launch(stopped: Path) -> None:
    header, rows = parse(stopped.read_bytes(), "t")
    assert header.num_configs == 4
    assert 2 <= len(rows) < 4
    assert rows[0].key == header.baseline_key


def test_the_same_command_completes_the_table(recorded: tuple[Table, str, bytes]) -> None:
    table, said, before = recorded
    header, rows = table.header, table.rows
    first = [row for row in rows if not row.repeat]
    assert table.rows[: before.count(b"\n") - 1] == parse(before, "t")[1]
    assert len({row.key for row in first}) == len(first) == header.num_configs == 4
    assert [row.launch for row in rows] == list(range(6))
    assert [row.repeat for row in rows] == [0, 0, 0, 0, 1, 1]
    assert said.count("repeat ") >= 2
    fastest = min(first, key=lambda row: row.s_per_it or 0)
    slowest = max(first, key=lambda row: row.s_per_it or 0)
    assert {row.key for row in rows[4:]} == {fastest.key, slowest.key}


def test_every_launch_has_its_raw_figures(recorded: tuple[Table, str, bytes]) -> None:
    table, _, _ = recorded
    cycle = table.header.workload["distinct_batches"]
    for row in table.rows:
        assert row.failure is None
        assert len(row.ranks) == table.header.topology.processes == 2
        for rank in row.ranks:
            measured = rank.measurement
            assert measured is not None
            # One cycle to warm up, checks included, and whole cycles up to the table's limits.
            assert len(measured.warmup_s) == cycle
            assert len(measured.iteration_s) in (cycle, 2 * cycle)
            assert len(measured.checks) == 3
            assert 0 < measured.peak_timed_bytes <= measured.peak_worst_case_bytes
            assert measured.memory_limit_bytes > measured.peak_worst_case_bytes
            assert measured.read_back["workload.micro_batch"].actual == row.params["micro_batch"]
            assert {"build", "measure"} <= rank.phase_s.keys()
        assert row.ranks[0].measurement.checks == row.ranks[1].measurement.checks
        slowest = max(
            one.measurement.window_s / len(one.measurement.iteration_s) for one in row.ranks
        )
        assert row.s_per_it == slowest
        assert 0 < row.overhead_s < row.wall_s


def test_a_table_names_no_machine_and_no_folder(recorded: tuple[Table, str, bytes]) -> None:
    table, _, before = recorded
    assert "hostname" not in table.header.environment
    assert {"python", "packages", "cpu", "gpus"} <= table.header.environment.keys()
    assert str(ROOT).encode() not in before
    assert b'plan_digest":""' in before
    assert table.header.grid == (GRIDS / "qwen3-tiny-fsdp2.yaml").read_text()


def test_errors_keep_their_words_and_lose_their_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import table_file

    error = RankError(
        type="torch.OutOfMemoryError",
        message="CUDA out of memory, see https://pytorch.org/docs/notes.html (pid 7 of /opt/x/run)",
        traceback='  File "/home/me/site-packages/torch/nn/linear.py", line 3\n' + "x" * 5000,
        at=1.0,
        phase="check",
    )
    record = RankRecord(
        rank=1,
        pid=7,
        plan_digest="abc",
        status="failed",
        phase="check",
        started_at=0.0,
        ended_at=1.0,
        phase_s={},
        error=error,
    )
    kept = table_file.portable(record)
    assert (kept.pid, kept.plan_digest) == (0, "")
    assert kept.error is not None
    assert kept.error.message == (
        "CUDA out of memory, see https://pytorch.org/docs/notes.html (pid 7 of run)"
    )
    assert kept.error.traceback == "x" * 2000
    failure = Failure(kind="crash", reason="no /home/me/a/config.json", detail="at /home/me/x.py")
    kept_failure = table_file.portable_failure(failure)
    assert (kept_failure.reason, kept_failure.detail) == ("no config.json", "at x.py")
    for name in ("table_file", "grids"):
        sys.modules.pop(name, None)


def test_a_complete_table_is_left_as_it_is(
    recorded: tuple[Table, str, bytes], tmp_path: Path
) -> None:
    table, _, _ = recorded
    copy = tmp_path / "copy.jsonl"
    code, said = run("--output", str(copy), "--from", str(table.path), *SMALL)
    assert " left (about" not in said
    assert read_table(tmp_path / "copy.jsonl.gz").rows == table.rows
    assert (tmp_path / "copy.jsonl.gz").read_bytes() == table.path.read_bytes()
    assert code in (0, 1)


def test_other_conditions_are_refused_with_what_differs(
    recorded: tuple[Table, str, bytes], tmp_path: Path
) -> None:
    table, _, _ = recorded
    copy = tmp_path / "copy.jsonl"
    code, said = run(
        "--output", str(copy), "--from", str(table.path), *SMALL,
        "--set", "workload.optimizer.lr=1e-4",
    )  # fmt: skip
    assert code == 2
    assert "workload.optimizer.lr: 1e-05 -> 0.0001" in said
    assert not copy.exists()


def test_a_limit_that_leaves_no_time_records_nothing_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    code, said = run("--output", str(path), *SMALL, "--limit", "1")
    assert code == 130
    assert "0 launches" in said
    header, rows = parse(path.read_bytes(), "t")
    assert (header.num_configs, rows) == (4, ())


@pytest.mark.parametrize(
    ("name", "device", "count"),
    [
        ("qwen3-4b-fsdp2", "cuda", 160),
        ("qwen3-4b-zero3", "cuda", 168),
        ("qwen3-tiny-fsdp2", "cpu", 24),
    ],
)
def test_a_shipped_grid_has_so_many_different_configurations(
    name: str, device: Literal["cpu", "cuda"], count: int
) -> None:
    topology = Topology(processes=2, device=device, devices_per_node=2)
    space = load_space(str(GRIDS / f"{name}.yaml")).on(topology)
    configs = [space.resolve(one) for one in list_assignments(space)]
    keys = {one.key for one in configs if space.violated(one) is None}
    assert len(keys) == count
    assert space.baseline_config().key in keys


def test_the_cut_model_is_the_published_one_but_for_its_depth() -> None:
    config = json.loads((GRIDS / "qwen3-4b-8-of-36-layers" / "config.json").read_text())
    published = PRESETS["qwen3-4b"]
    assert published["num_hidden_layers"] == 36
    assert config == {**published, "num_hidden_layers": 8}
