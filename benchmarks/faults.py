"""Trials with random faults in real ranks: is each classified right, and does anything stay?

    python benchmarks/faults.py --output benchmarks/results/DATE-faults.jsonl

Every trial is a real one (two gloo ranks, DDP, a tiny model) from the fork server. In one of its
ranks, at a random moment, a fault is planted (``fault_ranks.py``). What is retried by its kind is
retried, without the fault. Afterwards every attempt must have the kind that its fault stands for
and name the rank, no process may be left, no result may be missing, and the trial must have ended
within 10 s of the fault (of its deadline, for a hang).
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import harness

sys.path.insert(0, str(harness.ROOT))

from autotune.contract import processes
from autotune.contract.folder import AttemptFolder, StudyFolder
from autotune.contract.plan import Deadlines, Plan, Reference
from autotune.launchers.local import LocalLauncher
from autotune.search import launching
from autotune.search.interrupts import Interrupts
from autotune.search.launching import Flops, Launch, Runner
from autotune.search.planning import Planner
from autotune.search.preflight import prepare
from autotune.search.request import SearchRequest
from autotune.search.resume import begin
from autotune.store.database import Store, default_url
from autotune.store.importer import read_study
from autotune.store.recorder import StudyRecorder
from autotune.store.records import TrialHeader

SPACE = """
version: 1
backend: ddp
workload: {model: qwen3-tiny, global_batch: 4, data: {lengths: ultrachat-like, max_length: 64}}
topology: {processes: 2}
baseline: {micro_batch: 1}
params:
  bucket_cap_mb: {type: int, low: 1, high: 200, log: true}
"""
FAULTS: dict[str, dict[str, str | None]] = {
    "raise": {"raise": "crash"},
    "SIGKILL": {"signal:SIGKILL": "crash"},
    "SIGSEGV": {"signal:SIGSEGV": "crash"},
    "hang": {"hang:asleep": "hang", "hang:stopped": "hang", "hang:locked": "hang"},
    "OOM": {
        "memory:allocator": "oom_device",
        "memory:nccl": "oom_device",
        "memory:cublas": "oom_device",
        "memory:host": "oom_host",
    },
    "exit 137": {"exit:137": "oom_host"},
    "stubborn grandchild": {"grandchild:": None, "grandchild:raise": "crash"},
    "corrupt outcome file": {
        f"corrupt:{how}": "crash" for how in ("empty", "cut", "pickle", "nan", "other")
    },
    "silent exit": {"exit:0": "crash"},
    "server lost": {"server:SIGKILL": "infra", "server:SIGSTOP": "infra"},
    "none": {"none": None},
}
"""Fault to its variants, and the kind that each stands for; ``None``: the trial is measured."""
RARE = ("silent exit", "server lost", "none")
"""Beside the faults that are asked for: a quarter as often."""
STEPS = 8
"""A fault comes in one of so many first steps, or while the engine is built."""
STANDSTILL_S = 5.0
SILENCE_S = 3.0
WITHIN_S = 10.0


class QuickPlanner(Planner):
    """Plans with deadlines of seconds, for trials of just the steps that faults are planted in."""

    def plan(self, *arguments: Any, **options: Any) -> Plan:
        plan = super().plan(*arguments, **options)
        limits = dict.fromkeys(("build", "check", "warmup", "measure", "probe"), STANDSTILL_S)
        limits |= {"launch": 20.0, "init": 20.0, "teardown": 10.0}
        return dataclasses.replace(
            plan,
            deadlines=Deadlines(total_s=90.0, phase_s=limits),
            measuring=dataclasses.replace(
                plan.measuring, warmup_max_cycles=1, window_s=0.5, window_iterations=STEPS
            ),
        )


class PlantingLauncher(LocalLauncher):
    """Writes the fault beside the plan of a trial's first attempt."""

    faults: dict[int, dict[str, Any]]

    def submit(self, folder: AttemptFolder, plan: Plan) -> str:
        fault = self.faults[plan.number] if plan.attempt == 0 else {"name": "none", "rank": 0}
        (folder.path / "fault.json").write_text(json.dumps(fault))
        return super().submit(folder, plan)


def draw(trials: int, seed: int) -> dict[int, dict[str, Any]]:
    """Draw the faults; the first ones are one of each, so that none is missing."""
    rng = random.Random(seed)
    names = list(FAULTS)
    weights = [1 if name in RARE else 4 for name in names]
    drawn = rng.sample(names, len(names)) if trials >= len(names) else []
    drawn += rng.choices(names, weights, k=trials - len(drawn))
    faults: dict[int, dict[str, Any]] = {}
    for number, group in enumerate(drawn):
        where: int | str = rng.choice(["build", *range(STEPS)])
        name = rng.choice(list(FAULTS[group]))
        faults[number] = {"group": group, "name": name, "rank": rng.randrange(2), "where": where}
    return faults


def run(faults: dict[int, dict[str, Any]], runs: Path) -> dict[int, list[int]]:
    """Run all trials; return the processes that were left after each."""
    space = runs.parent / "space.yaml"
    space.write_text(SPACE)
    request = SearchRequest(space=str(space), trials=len(faults), study="faults", runs=runs)
    prepared = prepare(request, staging=runs.parent)
    runs.mkdir(exist_ok=True)
    store = Store(default_url(runs))
    recorder = StudyRecorder(prepared.folder, store)
    recorder.save_study(begin(prepared))
    launcher = PlantingLauncher(
        prepared.folder,
        prepared.topology.processes,
        "cpu",
        backends=("ddp",),
        entry="fault_ranks:run_rank",
        silence_s=SILENCE_S,
    )
    launcher.faults = faults
    planner = QuickPlanner(
        study="faults",
        space=prepared.space,
        workload=prepared.workload,
        topology=prepared.topology,
    )
    runner = Runner(
        launcher=launcher,
        recorder=recorder,
        planner=planner,
        interrupts=Interrupts(),
        events=lambda _: None,
        flops=Flops(per_iteration=None, per_s_at_peak=None),
    )
    left: dict[int, list[int]] = {}
    try:
        # The trials are what is tested, not the patience.
        with mock.patch.object(launching, "BACK_OFF_S", 0.1):
            for number in faults:
                one_trial(number, runner, recorder, planner)
                left[number] = leftovers(prepared.folder.path, number)
                progress(number, faults[number], recorder)
    finally:
        runner.close()
        store.close()
    left[-1] = processes.find_of_study(processes.mark_of(prepared.folder.path))
    return left


def one_trial(number: int, runner: Runner, recorder: StudyRecorder, planner: Planner) -> None:
    config = planner.space.baseline_config()
    study = recorder.contents().study
    recorder.open_trial(
        TrialHeader(
            number=number,
            origin="baseline" if number == 0 else "proposal",
            params=planner.baseline_params,
            config=dict(config.values),
            backend=config.backend,
            key=config.key,
            context=study.context,
            space_fingerprint=study.space_fingerprint,
            inside_space=True,
            created_at=time.time(),
        )
    )
    runner.run(
        Launch(
            purpose="trial",
            number=number,
            first_attempt=0,
            config=config,
            params=planner.baseline_params,
            label=f"trial {number}",
            reference=Reference(),
            racing=None,
        )
    )


def leftovers(study: Path, number: int) -> list[int]:
    """Processes of the trial that still live: by their marker, and by what the ranks wrote down."""
    # Servers carry no job.
    of_study = processes.find_of_study(processes.mark_of(study))
    found = {pid for pid in of_study if "-" not in (processes.marker_of(pid) or "-")}
    for file in study.glob(f"trials/{number:05d}/attempt-*/grandchildren.json"):
        found |= {pid for pid in json.loads(file.read_text()) if Path(f"/proc/{pid}").exists()}
    return sorted(found)


def progress(number: int, fault: dict[str, Any], recorder: StudyRecorder) -> None:
    record = recorder.contents().trial(number)
    assert record is not None
    ends = [one.outcome.state for one in record.attempts if one.outcome is not None]
    print(f"{number}: {fault['name']} in {fault['where']}: {', '.join(ends)}", file=sys.stderr)


def judge(faults: dict[int, dict[str, Any]], runs: Path, left: dict[int, list[int]]) -> list[Any]:
    """Compare what was recorded on the disk with what was planted."""
    folder = runs / "faults"
    contents = read_study(StudyFolder(folder))
    results: list[dict[str, Any]] = []
    for number, fault in faults.items():
        trial = contents.trial(number)
        attempts = [] if trial is None else trial.attempts
        outcome = attempts[0].outcome if attempts else None
        failure = None if outcome is None else outcome.failure
        expected = FAULTS[fault["group"]][fault["name"]]
        kind = None if failure is None else failure.kind
        planted = folder / "trials" / f"{number:05d}" / "attempt-0" / "planted"
        after_s = None
        if outcome is not None and planted.exists():
            after_s = outcome.submitted_at + outcome.wall_s - float(planted.read_text())
        limit_s = WITHIN_S + (STANDSTILL_S if expected == "hang" else 0.0)
        late = expected is not None and (after_s is None or after_s > limit_s)
        rank_right = failure is None or kind == "infra" or failure.rank == fault["rank"]
        last = attempts[-1].outcome if attempts else None
        retried = expected in ("crash", "hang", "infra")
        results.append(
            {
                "trial": number,
                "fault": fault["group"],
                "variant": fault["name"],
                "rank": fault["rank"],
                "where": fault["where"],
                "expected": expected,
                "kind": kind,
                "reason": None if failure is None else failure.reason.replace(f"{folder}/", ""),
                "right": outcome is not None and kind == expected and rank_right,
                "late": late,
                "ended_after_s": None if after_s is None else round(after_s, 2),
                "attempts": len(attempts),
                "measured": last is not None and last.measurement is not None,
                "lost": last is None or (last.measurement is None) == (retried or not expected),
                "left": len(left[number]),
            }
        )
    return results


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    here = str(Path(__file__).resolve().parent)
    parts = [here, str(harness.ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(part for part in parts if part)
    faults = draw(options.trials, options.seed)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        runs = Path(name) / "runs"
        left = run(faults, runs)
        results = judge(faults, runs, left)
    head = ["fault", "trials", "right", "late", "processes left", "results lost", "slowest end"]
    rows = [head]
    for group, count in sorted(Counter(one["fault"] for one in results).items()):
        mine = [one for one in results if one["fault"] == group]
        slowest = max((one["ended_after_s"] or 0.0 for one in mine), default=0.0)
        sums = [sum(one[key] for one in mine) for key in ("right", "late", "left", "lost")]
        rows.append([group, str(count), *map(str, sums), f"{slowest:.1f} s"])
    harness.finish("faults", results, rows, options.output)
    bad = [one for one in results if not one["right"] or one["late"] or one["left"] or one["lost"]]
    for one in bad:
        print(json.dumps(one))
    print(
        f"{len(results)} trials, seed {options.seed}, {len(bad)} wrong, "
        f"{len(left[-1])} processes left at the end, {time.monotonic() - started:.0f} s"
    )
    sys.exit(1 if bad or left[-1] else 0)


if __name__ == "__main__":
    main()
