"""Trials of a user's own program: real processes through the real launcher, judged as in a search.

Where a test needs exact times, the program's own clock is scripted.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from launching import WAIT_S, is_running, make_plan, read_pid, wait_for

from autotune.backends.base import backend_of
from autotune.contract import plan as p
from autotune.contract.folder import StudyFolder
from autotune.launchers.local import LocalLauncher
from autotune.search.judging import judge

HEAD = """
import json, os, signal, sys, time
from autotune import report_step
from autotune.contract import steps

def report(*seconds, **numbers):
    at = 1000.0
    for one in (0.0, *seconds):
        at += one
        steps.time = type("Clock", (), {"monotonic": staticmethod(lambda: at)})
        report_step(**numbers)
"""
CONFIG = {
    "zero3.reduce_bucket_size": 1_000_000,
    "workload.micro_batch": 2,
    "command.workers": 4,
    "command.fast": True,
}
MEASURING = p.Measuring(
    warmup_tolerance=0.1,
    warmup_max_cycles=2,
    interval_share=0.05,
    window_s=1000.0,
    window_iterations=4,
)


class Commands:
    """Runs programs as trials."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.study = StudyFolder(path / "study")
        self.launcher = LocalLauncher(self.study, 1, "cpu", False)
        self.number = 0

    def submit(self, source, *arguments, launch=(), processes=1, total_s=WAIT_S, **changes):
        script = self.path / f"train{self.number}.py"
        script.write_text(HEAD + textwrap.dedent(source), encoding="utf-8")
        plan = dataclasses.replace(
            make_plan(processes=processes, total_s=total_s),
            backend="zero3",
            config=CONFIG,
            verify=("zero3.reduce_bucket_size",),
            workload=p.CommandWorkload(
                command=(sys.executable, *launch, str(script), *arguments),
                global_batch=8,
                distinct_batches=2,
            ),
            schedule=None,
            measuring=MEASURING,
            **changes,
        )
        folder = self.study.attempt("trial", self.number, 0)
        self.number += 1
        folder.write_plan(plan)
        return self.launcher.submit(folder, plan), plan, folder

    def run(self, source, *arguments, **options):
        job, plan, folder = self.submit(source, *arguments, **options)
        status = self.launcher.poll(job, timeout_s=WAIT_S)
        assert status.state == "ended"
        return judge(plan, folder, status), folder

    def failure(self, source, *arguments, **options):
        outcome, _ = self.run(source, *arguments, **options)
        assert outcome.measurement is None
        return outcome.failure


@pytest.fixture
def commands(tmp_path):
    bench = Commands(tmp_path)
    bench.launcher.start()
    yield bench
    bench.launcher.close()


STEADY = (9.0, 3.0, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25)


def test_a_program_is_timed_by_its_reports_and_then_ended(commands):
    source = f"""
        report({", ".join(map(str, STEADY))})
        open("{commands.path}/pid", "w").write(str(os.getpid()))
        time.sleep(600)
    """
    outcome, _ = commands.run(source)
    assert outcome.state == "complete"
    measured = outcome.measurement
    assert measured.s_per_it == pytest.approx(0.25)
    # Two cycles of two are the limit: the first still holds the compilation, so they differ.
    assert measured.unsteady
    assert measured.warmup_iterations == 4
    assert measured.iterations == 4
    assert measured.compile_s == pytest.approx(8.75 + 2.75)
    assert measured.samples_per_s == pytest.approx(8 / 0.25)
    assert measured.tokens_per_s is None
    assert measured.micro_steps is None
    assert measured.read_back == {}
    assert measured.notes["unverified"] == {"zero3.reduce_bucket_size": 1_000_000}
    assert measured.peak_memory.timed > 1_000_000
    assert not is_running(read_pid(commands.path / "pid"))
    assert {"build", "teardown"} <= set(outcome.phase_s)


def test_the_slowest_rank_counts(commands):
    source = f"""
        if "RANK" not in os.environ:
            import subprocess
            ranks = [
                subprocess.Popen([sys.executable, *sys.argv],
                                 env=os.environ | {{"RANK": str(r), "WORLD_SIZE": "2"}})
                for r in range(2)
            ]
            sys.exit(max(rank.wait() for rank in ranks))
        if os.environ["RANK"] == "1":
            report(*[0.5] * 12)
            open("{commands.path}/slow", "w").close()
        else:
            while not os.path.exists("{commands.path}/slow"):  # real ranks run in step
                time.sleep(0.02)
            report(*[0.25] * 12)
        time.sleep(600)
    """
    outcome, folder = commands.run(source, processes=2)
    assert outcome.measurement.s_per_it == pytest.approx(0.5)
    assert len(list(folder.path.glob("steps-*.jsonl"))) == 2


def test_what_the_command_is_given(commands, monkeypatch):
    source = f"""
        facts = {{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
        json.dump(facts, open("{commands.path}/facts", "w"))
        report(*[0.25] * 12)
    """
    arguments = (
        "--deepspeed={deepspeed_json}", "{trial_dir}/out", "{processes}",
        "{param:command.workers}", "{param:command.fast}", "{{kept}} $HOME; *",
    )  # fmt: skip
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("AUTOTUNE_TRIAL_DIR", "/nowhere")
    outcome, folder = commands.run(source, *arguments)
    assert outcome.state == "complete"
    facts = json.loads((commands.path / "facts").read_text())
    rendered = folder.path / "deepspeed.json"
    assert facts["argv"] == [
        f"--deepspeed={rendered}", f"{folder.path}/out", "1", "4", "true", "{kept} $HOME; *",
    ]  # fmt: skip
    assert facts["cwd"] == str(Path.cwd())
    assert facts["env"]["AUTOTUNE_TRIAL_DIR"] == str(folder.path)
    # One report to start with, two cycles of warm-up at most, four timed iterations.
    assert facts["env"]["AUTOTUNE_ITERATIONS"] == "9"
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT"} & set(facts["env"])
    content = json.loads(rendered.read_text())
    assert content == backend_of("zero3").render(folder.read_plan())
    assert content["train_batch_size"] == 8
    assert content["gradient_accumulation_steps"] == 4
    assert content["zero_optimization"] == {"stage": 3, "reduce_bucket_size": 1_000_000}
    assert not {"optimizer", "bf16", "gradient_clipping"} & set(content)


@pytest.mark.parametrize(
    ("source", "kind", "reason"),
    [
        ("raise ValueError('bad bucket')", "crash", "ValueError: bad bucket"),
        ("raise MemoryError()", "oom_host", "MemoryError"),
        (
            "raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')",
            "oom_device",
            "CUDA out of memory. Tried to allocate 2.00 GiB",
        ),
        (
            "raise ConnectionResetError('connection reset by peer')",
            "infra",
            "ConnectionResetError: connection reset by peer",
        ),
        (
            "print('cannot find the data', file=sys.stderr); sys.exit(3)",
            "crash",
            "exit code 3: cannot find the data",
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", "crash", "SIGKILL: the command was ended from"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crash", "SIGSEGV: the command was ended"),
        ("sys.exit(137)", "crash", "SIGKILL"),
        ("pass", "crash", "never called autotune.report_step()"),
        ("report(0.5, 0.5)", "crash", "ended after 3 reported steps; 9 are enough"),
        ("report(0.5, loss=float('nan'))", "numerics", "step 1 reports loss nan"),
        # What it printed cannot drive the terminal.
        (
            r"os.write(1, b'caf\xe9 \x1b[31mred\0\n'); sys.exit(9)",
            "crash",
            "exit code 9: caf\ufffd \\x1b[31mred\\x00",
        ),
        # A FIFO would be waited for by whoever reads the log.
        (
            "log = os.environ['AUTOTUNE_TRIAL_DIR'] + '/rank-0.log'; os.unlink(log); "
            "os.mkfifo(log); sys.exit(4)",
            "crash",
            "exit code 4: the command printed nothing",
        ),
    ],
)
def test_failures_by_name(commands, source, kind, reason):
    failure = commands.failure(source)
    assert (failure.kind, reason in failure.reason) == (kind, True), failure.reason
    assert failure.detail or not source.startswith(("raise", "print"))


def test_a_program_that_clears_the_trials_folder_is_told_so(commands):
    """As one does that empties its output folder, and was given ``{trial_dir}`` for it."""
    clear = "__import__('shutil').rmtree(os.environ['AUTOTUNE_TRIAL_DIR'], ignore_errors=True)"
    failure = commands.failure(f"report(0.5); {clear}; time.sleep(600)")
    assert failure.kind == "crash"
    assert "the trial's folder was emptied or removed" in failure.reason


def test_the_cause_is_found_behind_what_a_launcher_says(commands):
    source = """
        print('''[rank1]: Traceback (most recent call last):
        [rank1]:   File "train.py", line 7, in <module>
        [rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 MiB
        Traceback (most recent call last):
          File "run.py", line 9, in launch
        torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
        ===== train.py FAILED ====='''.replace(" " * 8, ""), file=sys.stderr)
        sys.exit(1)
    """
    failure = commands.failure(source)
    assert failure.kind == "oom_device"
    assert failure.reason == "CUDA out of memory. Tried to allocate 20 MiB"


def test_no_step_in_time_is_a_hang_and_too_few_are_a_timeout(commands):
    failure = commands.failure("time.sleep(600)", total_s=1.5)
    assert (failure.kind, failure.phase) == ("hang", "build")
    assert failure.reason == "the command reported no step within 1.5 s"
    failure = commands.failure("report(0.5, 0.5); time.sleep(600)", total_s=1.5)
    assert failure.kind == "timeout"
    assert failure.phase == "warmup"


def test_a_program_that_ends_by_itself_with_enough_steps_is_measured(commands):
    outcome, _ = commands.run("report(*[0.5] * 6)")
    assert outcome.measurement.s_per_it == pytest.approx(0.5)
    assert outcome.measurement.iterations == 2
    assert "ended_early" in outcome.measurement.notes


def test_nothing_is_left_of_a_program_that_will_not_end(commands):
    source = f"""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            open("{commands.path}/grandchild", "w").write(str(os.getpid()))
            time.sleep(600)
        open("{commands.path}/pid", "w").write(str(os.getpid()))
        while not os.path.exists("{commands.path}/grandchild"):
            time.sleep(0.01)
        report(*[0.25] * 12)
        time.sleep(600)
    """
    outcome, _ = commands.run(source)
    assert outcome.state == "complete"
    for name in ("pid", "grandchild"):
        assert not is_running(read_pid(commands.path / name))


def test_a_cancelled_program_ends_with_all_it_started(commands):
    source = f"""
        if os.fork() == 0:
            open("{commands.path}/grandchild", "w").write(str(os.getpid()))
            time.sleep(600)
        open("{commands.path}/pid", "w").write(str(os.getpid()))
        time.sleep(600)
    """
    job, plan, folder = commands.submit(source)
    files = [commands.path / name for name in ("pid", "grandchild")]
    pids = [wait_for(lambda file=file: read_pid(file), file.name) for file in files]
    commands.launcher.cancel(job)
    outcome = judge(plan, folder, commands.launcher.poll(job))
    assert outcome.state == "interrupted"
    assert not any(map(is_running, pids))


def numerics(*reference):
    return p.Numerics(
        reference=reference,
        first_loss_tolerance=1e-3,
        first_norm_tolerance=1e-2,
        loss_tolerance=1e-2,
        norm_tolerance=5e-2,
    )


def test_reported_numbers_are_compared_with_the_baselines(commands):
    same = p.CheckPoint(loss=2.0, grad_norm=0.5)
    steady = "report(*[0.25] * 12, loss=2.0, grad_norm=0.5)"
    outcome, _ = commands.run(steady, numerics=numerics(same, same, same))
    assert outcome.measurement.checks == (same, same, same)
    assert outcome.measurement.final_loss == 2.0
    off = p.CheckPoint(loss=2.0, grad_norm=2.0)
    failure = commands.failure(steady, numerics=numerics(off))
    assert failure.kind == "numerics"
    assert "the gradient norm of check iteration 1 is 0.5" in failure.reason
    failure = commands.failure("report(*[0.25] * 12)", numerics=numerics(same))
    assert failure.reason == "no loss of check iteration 1 is reported, and the baseline has one"


def test_numbers_that_nobody_reports_are_not_compared(commands):
    none = p.CheckPoint(loss=None, grad_norm=None)
    outcome, _ = commands.run("report(*[0.25] * 12)", numerics=numerics(none, none, none))
    assert outcome.measurement.checks == (none, none, none)
    assert outcome.measurement.final_loss is None


def test_another_number_of_processes_is_not_what_was_asked_for(commands):
    source = "os.environ |= {'RANK': '0', 'WORLD_SIZE': '4'}; report(*[0.25] * 12)"
    failure = commands.failure(source)
    assert failure.kind == "not_in_effect"
    assert "runs 4 processes, and topology.processes is 1" in failure.reason


@pytest.mark.parametrize("steps", [3, 12])
def test_every_rank_must_report(commands, steps):
    """Rank 0 alone would hide the slowest rank's time and the fullest one's memory."""
    source = f"""
        os.environ |= {{'RANK': '0', 'WORLD_SIZE': '2'}}
        report(*[0.25] * {steps})
        time.sleep({0 if steps == 3 else 600})
    """
    failure = commands.failure(source, processes=2)
    assert failure.kind == "crash"
    assert "rank 1 never called autotune.report_step()" in failure.reason


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node={processes}")


def test_torchrun_starts_the_ranks_and_is_ended_with_them(commands):
    source = f"""
        open("{commands.path}/pid" + os.environ["RANK"], "w").write(str(os.getpid()))
        while not all(os.path.exists("{commands.path}/pid" + rank) for rank in "01"):
            time.sleep(0.02)
        report(*[0.25] * 12)
        time.sleep(600)
    """
    outcome, _ = commands.run(source, launch=TORCHRUN, processes=2)
    assert outcome.measurement.s_per_it == pytest.approx(0.25)
    for rank in "01":
        assert not is_running(read_pid(commands.path / f"pid{rank}"))


def test_the_exception_of_a_rank_under_torchrun(commands):
    source = """
        if os.environ["RANK"] == "1":
            raise ValueError("bad shard")
        time.sleep(600)
    """
    failure = commands.failure(source, launch=TORCHRUN, processes=2)
    assert failure.kind == "crash"
    assert failure.reason == "ValueError: bad shard"


def test_outside_a_trial_reporting_does_nothing(tmp_path):
    code = "from autotune import report_step\nreport_step(loss=1.0)"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AUTOTUNE_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []
