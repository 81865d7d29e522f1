"""Real trials, from the fork server to the judge, with a fault planted in one real rank.

The whole of it, two hundred random faults, is ``benchmarks/faults.py``; this is one of each.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import os
import sys
from pathlib import Path

import pytest
from support_trials import make_plan

from autotune.contract import processes
from autotune.contract.folder import StudyFolder
from autotune.contract.plan import Deadlines
from autotune.launchers.local import LocalLauncher
from autotune.search.judging import judge

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
STANDSTILL_S = 3.0


class Planted:
    """Runs one trial after the other with a fault in each."""

    def __init__(self, folder: Path) -> None:
        self.study = StudyFolder(folder / "runs" / "study")
        self.launcher = LocalLauncher(
            self.study, 2, "cpu", backends=("ddp",), entry="fault_ranks:run_rank", silence_s=2.0
        )
        limits = dict.fromkeys(("check", "warmup", "measure"), STANDSTILL_S)
        deadlines = Deadlines(total_s=100.0, phase_s=limits)
        self.plan = dataclasses.replace(make_plan("ddp"), deadlines=deadlines)
        self._numbers = itertools.count()

    def run(self, name: str, *, rank: int = 1, where: int | str = 2):
        folder = self.study.attempt("trial", next(self._numbers), 0)
        folder.write_plan(self.plan)
        fault = {"name": name, "rank": rank, "where": where}
        (folder.path / "fault.json").write_text(json.dumps(fault))
        job = self.launcher.submit(folder, self.plan)
        status = self.launcher.poll(job, timeout_s=150.0)
        assert status.state == "ended"
        assert processes.find_marked(job) == []
        outcome = judge(self.plan, folder, status)
        planted = folder.path / "planted"
        after_s = None
        if planted.exists():
            after_s = outcome.submitted_at + outcome.wall_s - float(planted.read_text())
        return outcome, after_s, folder


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(BENCHMARKS), prepend=os.pathsep)
        bench = Planted(tmp_path_factory.mktemp("planted"))
        yield bench
        bench.launcher.close()
    mark = processes.mark_of(bench.study.path)
    assert processes.find_of_study(mark) == []


def test_out_of_memory_on_one_rank_ends_the_trial_and_the_next_one_runs(planted: Planted) -> None:
    """BUG-032: rank 1 raises in step 3 while rank 0 waits for it in an all-reduce."""
    outcome, after_s, _ = planted.run("memory:allocator", rank=1, where=2)
    failure = outcome.failure
    assert failure is not None
    assert (failure.kind, failure.rank, failure.phase) == ("oom_device", 1, "check")
    assert failure.iteration == 2  # two are done: it was the third
    assert after_s is not None
    assert after_s < 60.0
    clean, _, _ = planted.run("none")
    assert clean.state == "complete"


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("raise", "crash", "RuntimeError: planted"),
        ("signal:SIGSEGV", "crash", "rank 0 was ended by SIGSEGV"),
        ("exit:137", "oom_host", "exit code 137"),
        ("exit:0", "crash", "rank 0 left no record (exit code 0)"),
        ("corrupt:cut", "crash", "not a JSON record"),
        ("hang:locked", "hang", "did not move for 3 s"),
    ],
)
def test_each_fault_has_its_kind_and_its_rank(
    planted: Planted, name: str, kind: str, said: str
) -> None:
    outcome, _, folder = planted.run(name, rank=0, where=3)
    failure = outcome.failure
    assert failure is not None
    assert (failure.kind, failure.rank) == (kind, 0)
    text = f"{failure.reason}\n{failure.detail}"
    assert said in text
    assert folder.log_file(1).exists()  # everything is kept
    if kind == "hang":  # its stacks too, though the interpreter's lock was never free
        assert "in hang" in folder.log_file(0).read_text()


def test_grandchildren_that_ignore_signals_end_with_a_trial_that_is_measured(
    planted: Planted,
) -> None:
    outcome, _, folder = planted.run("grandchild:", rank=1, where="build")
    assert outcome.state == "complete"
    pids = json.loads((folder.path / "grandchildren.json").read_text())
    assert len(pids) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_server_that_dies_in_the_middle_is_the_machines_failure(planted: Planted) -> None:
    before = planted.launcher.ready
    outcome, _, _ = planted.run("server:SIGKILL", rank=1, where=1)
    assert outcome.failure is not None
    assert outcome.failure.kind == "infra"
    again, _, _ = planted.run("none")
    assert again.state == "complete"
    assert planted.launcher.ready is not None
    assert before is None or planted.launcher.ready.pid != before.pid


def test_the_script_of_planted_faults_knows_what_it_plants() -> None:
    sys.path.insert(0, str(BENCHMARKS))  # for what it imports itself
    try:
        spec = importlib.util.spec_from_file_location("faults_script", BENCHMARKS / "faults.py")
        assert spec is not None
        assert spec.loader is not None
        faults = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(faults)
    finally:
        sys.path.remove(str(BENCHMARKS))
    drawn = faults.draw(200, seed=1)
    assert len(drawn) == 200
    assert {one["group"] for one in drawn.values()} == set(faults.FAULTS)
    assert drawn == faults.draw(200, seed=1) != faults.draw(200, seed=2)
