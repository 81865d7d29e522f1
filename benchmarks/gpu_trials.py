"""What can only be seen on devices: memory that others hold, memory that runs out, ranks that hang.

    python benchmarks/gpu_trials.py --output benchmarks/results/DATE-gpu_trials.jsonl

Real trials (the tiny model, DDP, the project's own launcher and judge) on all visible GPUs, at
most two, or on two CPU processes, where the parts about devices are left out. Each part plants one
fault in a rank and prints one line: OK, FAIL, or SKIP with the reason.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import harness
from beside import clocks, is_back, shared_segments, used
from gpu_ranks import STEP

sys.path.insert(0, str(harness.ROOT))

from autotune.contract import nvml, processes
from autotune.contract.folder import AttemptFolder
from autotune.contract.outcome import Outcome
from autotune.contract.plan import Deadlines, Plan, Reference
from autotune.launchers.base import JobStatus
from autotune.launchers.local import LocalLauncher
from autotune.search.device_memory import DeviceMemory
from autotune.search.events import Message
from autotune.search.interrupts import Interrupts
from autotune.search.launching import Flops, Launch, Runner
from autotune.search.planning import Planner
from autotune.search.preflight import Prepared, prepare
from autotune.search.request import SearchRequest
from autotune.search.resume import begin
from autotune.store.database import Store, default_url
from autotune.store.recorder import StudyRecorder
from autotune.store.records import TrialHeader

SPACE = """
version: 1
backend: [ddp, zero3]
workload: {{model: qwen3-tiny, global_batch: 8, data: {{lengths: ultrachat-like, max_length: 64}}}}
topology: {{processes: {processes}}}
baseline: {{backend: ddp, micro_batch: 1}}
search: {{allow: [offload_optimizer, offload_param]}}
params:
  bucket_cap_mb: {{choices: [25, 50]}}
  offload_optimizer: {{choices: [none, cpu]}}
  offload_param: {{choices: [none, cpu]}}
"""
STANDSTILL_S = 10.0
TOTAL_S = 600.0
FOREIGN_GIB = 2
GIB = 1024**3
HOLDER = """
import sys, torch
held = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda:0")
torch.cuda.synchronize()
print("held", flush=True)
sys.stdin.read()
"""


class QuickPlanner(Planner):
    """Plans with short windows, and a limit on standing still that a test can wait for."""

    def plan(self, *arguments: Any, **options: Any) -> Plan:
        plan = super().plan(*arguments, **options)
        limits = dict.fromkeys(("check", "warmup", "measure", "probe"), STANDSTILL_S)
        limits |= {"launch": 60.0, "init": 60.0, "build": 60.0, "teardown": 15.0}
        return dataclasses.replace(
            plan,
            deadlines=Deadlines(total_s=TOTAL_S, phase_s=limits),
            measuring=dataclasses.replace(plan.measuring, window_s=2.0, window_iterations=12),
        )


class PlantingLauncher(LocalLauncher):
    """Writes the fault beside the plan of a trial's first attempt, and watches shared memory."""

    fault: dict[str, Any] = {"name": "none", "rank": 0}  # noqa: RUF012 - replaced, never changed
    shared_bytes = 0

    def submit(self, folder: AttemptFolder, plan: Plan) -> str:
        fault = self.fault if plan.attempt == 0 else {"name": "none", "rank": 0}
        (folder.path / "fault.json").write_text(json.dumps(fault))
        return super().submit(folder, plan)

    def poll(self, job: str, *, timeout_s: float = 0.0) -> JobStatus:
        sizes = [size for _, size in shared_segments()]
        self.shared_bytes = max(self.shared_bytes, sum(sizes))
        return super().poll(job, timeout_s=min(timeout_s, 0.1))


@dataclasses.dataclass(kw_only=True)
class Bench:
    """A study whose trials are launched one by one."""

    prepared: Prepared
    recorder: StudyRecorder
    launcher: PlantingLauncher
    runner: Runner
    messages: list[str]
    before: set[str]
    """Shared memory that was there at the start."""
    last: int = -1
    """Number of the last trial."""

    @property
    def on_gpus(self) -> bool:
        return self.prepared.topology.device == "cuda"

    def trial(
        self,
        fault: str = "none",
        rank: int = 0,
        *,
        backend: str = "ddp",
        values: Mapping[str, Any] | None = None,
    ) -> list[Outcome]:
        """Launch a trial until its outcome stands; return the outcome of each attempt."""
        space, study = self.prepared.space, self.recorder.contents().study
        assignment = {**space.default_config(backend).values, **(values or {})}
        config = space.resolve(space.project(backend, assignment))
        number = self.recorder.next_number("trial")
        self.recorder.open_trial(
            TrialHeader(
                number=number,
                origin="proposal",
                params=space.params_of(config),
                config=dict(config.values),
                backend=config.backend,
                key=config.key,
                context=study.context,
                space_fingerprint=study.space_fingerprint,
                inside_space=True,
                created_at=time.time(),
            )
        )
        self.launcher.fault = {"name": fault, "rank": rank}
        self.messages.clear()
        self.runner.run(
            Launch(
                purpose="trial",
                number=number,
                first_attempt=0,
                config=config,
                params=space.params_of(config),
                label=f"trial {number}",
                reference=Reference(),
                racing=None,
            )
        )
        self.last = number
        done = self.recorder.contents().trial(number)
        assert done is not None
        return [one.outcome for one in done.attempts if one.outcome is not None]

    def ended_after_s(self, outcome: Outcome) -> float:
        """Seconds from the planted fault to the last process reaped."""
        folder = self.prepared.folder.attempt("trial", self.last, 0).path
        return outcome.submitted_at + outcome.wall_s - float((folder / "planted").read_text())

    def left(self) -> dict[str, Any]:
        """Processes of trials, and shared memory, that should be gone."""
        mark = processes.mark_of(self.prepared.folder.path)
        # Servers carry no job.
        found = [pid for pid in processes.find_of_study(mark) if "-" not in marker(pid)]
        return {
            "processes": sorted(found),
            "shared": sorted({name for name, _ in shared_segments()} - self.before),
        }


def marker(pid: int) -> str:
    return processes.marker_of(pid) or "-"


Found = tuple[bool, dict[str, Any]]


def measured(bench: Bench) -> Found:
    """A trial without a fault; the driver's clock reasons and NCCL's shared memory beside it."""
    bench.launcher.shared_bytes = 0
    outcome = bench.trial()[-1]
    found = outcome.measurement
    facts: dict[str, Any] = {"reason": outcome.failure and outcome.failure.reason, **bench.left()}
    if found is not None:
        facts |= {"s_per_it": found.s_per_it, "throttled": found.throttled}
    facts |= {"shared_bytes": bench.launcher.shared_bytes, "clocks": clocks()}
    return found is not None and not facts["processes"] and not facts["shared"], facts


def foreign(bench: Bench) -> Found:
    """Another program's memory is named, the program lives on, and the trial is marked."""
    size = str(FOREIGN_GIB * GIB)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, size], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        outcome = bench.trial()[-1]
        alive = holder.poll() is None
        said = [text for text in bench.messages if "more than when the search began" in text]
        holder.kill()
    note = outcome.measurement.notes.get("foreign_memory") if outcome.measurement else None
    bench.trial()
    after = [text for text in bench.messages if "more than when" in text]
    named = any("GPU 0 holds 2" in text for text in said)
    facts = {"said": said, "holder_lives": alive, "note": note, "after_it_ended": after}
    return bool(named and alive and note and not after), facts


def failing(bench: Bench, fault: str, kind: str, within_s: float) -> Found:
    """A fault in the last rank: its kind, rank and step, all gone in time, memory back, go on."""
    last = bench.prepared.topology.processes - 1
    before = used()
    outcomes = bench.trial(fault, last)
    failure = outcomes[0].failure
    after_s = bench.ended_after_s(outcomes[0])
    back_s = seconds_until(lambda: is_back(before), 10.0)
    following = outcomes[-1] if len(outcomes) > 1 else bench.trial()[-1]
    facts: dict[str, Any] = {
        "kind": failure and failure.kind,
        "reason": failure and failure.reason,
        "rank": failure and failure.rank,
        "phase": failure and failure.phase,
        "iteration": failure and failure.iteration,
        "ended_after_s": round(after_s, 2),
        "memory_back_after_s": back_s,
        "next_is_measured": following.measurement is not None,
        **bench.left(),
    }
    right = failure is not None and (failure.kind, failure.rank) == (kind, last)
    if kind.startswith("oom"):
        right = right and failure is not None and failure.iteration == STEP
    clean = not facts["processes"] and not facts["shared"] and back_s is not None
    return right and clean and after_s < within_s and facts["next_is_measured"], facts


def retries(bench: Bench) -> Found:
    """The allocator gave its cache back in the timed window, and the record says so."""
    outcomes = bench.trial("squeeze", bench.prepared.topology.processes - 1)
    found = outcomes[0].measurement
    facts = {
        "alloc_retries": found and found.alloc_retries,
        "reason": outcomes[0].failure and outcomes[0].failure.reason,
    }
    return found is not None and found.alloc_retries > 0, facts


def offload(bench: Bench) -> Found:
    """ZeRO-3 with everything in host memory: measured, and no extension was compiled for it."""
    values = {"zero3.offload_optimizer": "cpu", "zero3.offload_param": "cpu"}
    outcome = bench.trial(backend="zero3", values=values)[-1]
    runs = bench.prepared.folder.path.parent
    built = [path.name for path in runs.glob(".cache/*/*/slot-*/extensions/*")]
    facts = {"reason": outcome.failure and outcome.failure.reason, "built": built}
    return outcome.measurement is not None and not built, facts


def seconds_until(condition: Callable[[], bool], limit_s: float) -> float | None:
    """Return how long it took, or ``None`` if it took too long."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > limit_s:
            return None
        time.sleep(0.05)
    return round(time.monotonic() - begun, 2)


def parts(bench: Bench) -> Iterator[tuple[str, str, Callable[[], Found]]]:
    """Name, why it is left out (empty: it is not), and how to run it."""
    no_gpu = "" if bench.on_gpus else "needs a GPU"
    alone = "" if bench.prepared.topology.processes > 1 else "needs two ranks"
    oom = "oom_device" if bench.on_gpus else "oom_host"
    late_s = STANDSTILL_S + 10.0
    yield "a trial is measured", "", lambda: measured(bench)
    yield "foreign memory is named", no_gpu, lambda: foreign(bench)
    yield "out of memory beside a collective", "", lambda: failing(bench, "oom", oom, 60.0)
    yield "killed beside a collective", "", lambda: failing(bench, "kill", "crash", 10.0)
    yield "hang in a collective", alone, lambda: failing(bench, "hang", "hang", late_s)
    yield "allocator retries are noted", no_gpu, lambda: retries(bench)
    yield "offload compiles nothing", "", lambda: offload(bench)


def open_bench(folder: Path) -> Bench:
    """A study in ``folder`` for up to two ranks."""
    ranks = min(2, len(nvml.gpus())) or 2
    space = folder / "space.yaml"
    space.write_text(SPACE.format(processes=ranks))
    runs = folder / "runs"
    request = SearchRequest(space=str(space), trials=10, study="gpu", runs=runs)
    prepared = prepare(request, staging=folder)
    runs.mkdir(exist_ok=True)
    recorder = StudyRecorder(prepared.folder, Store(default_url(runs)))
    recorder.save_study(begin(prepared))
    launcher = PlantingLauncher(
        prepared.folder,
        ranks,
        prepared.topology.device,
        backends=("ddp", "zero3"),
        entry="gpu_ranks:run_rank",
    )
    messages: list[str] = []
    uuids = [device.uuid for device in prepared.devices.found]
    runner = Runner(
        launcher=launcher,
        recorder=recorder,
        planner=QuickPlanner(
            study="gpu",
            space=prepared.space,
            workload=prepared.workload,
            topology=prepared.topology,
        ),
        interrupts=Interrupts(),
        events=lambda event: messages.append(event.text) if isinstance(event, Message) else None,
        flops=Flops(per_iteration=None, per_s_at_peak=None),
        devices=(lambda: DeviceMemory(uuids)) if uuids else None,
    )
    return Bench(
        prepared=prepared,
        recorder=recorder,
        launcher=launcher,
        runner=runner,
        messages=messages,
        before={name for name, _ in shared_segments()},
    )


def main() -> None:
    options = harness.parser(__doc__).parse_args()
    here = str(Path(__file__).resolve().parent)
    known = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, str(harness.ROOT), known)))
    results: list[dict[str, Any]] = []
    about = harness.machine()
    with tempfile.TemporaryDirectory() as name:
        bench = open_bench(Path(name))
        try:
            for part, left_out, run in parts(bench):
                begun = time.monotonic()
                ok, facts = (None, {"why": left_out}) if left_out else run()
                seconds = round(time.monotonic() - begun, 1)
                results.append({"part": part, "ok": ok, "seconds": seconds, **facts})
                harness.append("gpu_trials", results[-1:], options.output, about)
                print(json.dumps(results[-1]), file=sys.stderr, flush=True)
        finally:
            bench.runner.close()
        ends = bench.left()["processes"]
    words = {True: "OK", False: "FAIL", None: "SKIP"}
    rows = [["part", "", "s"], *([r["part"], words[r["ok"]], str(r["seconds"])] for r in results)]
    harness.finish("gpu_trials", [], rows, None, where=lambda: about)
    failed = [one for one in results if one["ok"] is False]
    print(f"{len(results)} parts, {len(failed)} failed, {len(ends)} processes left")
    sys.exit(1 if failed or ends else 0)


if __name__ == "__main__":
    main()
