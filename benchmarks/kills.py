"""A coordinator that is killed at random moments: does anything survive it, is anything lost?

    python benchmarks/kills.py --output benchmarks/results/DATE-kills.jsonl

Runs ``autotune search`` as a user does and sends it SIGKILL at a random moment: while it starts,
while its fork server imports, in the middle of a trial, between two, or during the confirmation.
After each kill every process of the study must be gone within 10 s. The same command is then given
again, until the study is complete; then another study begins. A complete study must hold exactly
the trials asked for, each number and each configuration once, and each with one outcome that
counts.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness

sys.path.insert(0, str(harness.ROOT))

from autotune.contract import processes
from autotune.contract.folder import StudyFolder
from autotune.contract.smallfile import read_beat
from autotune.store.importer import read_study

SPACE = """
version: 1
backend: ddp
workload: {model: qwen3-tiny, global_batch: 8, data: {lengths: ultrachat-like, max_length: 64}}
topology: {processes: 2}
baseline: {micro_batch: 1}
params:
  micro_batch: {choices: [1, 2, 4]}
  bucket_cap_mb: {type: int, low: 1, high: 200, log: true}
"""
GONE_WITHIN_S = 10.0
MORE_WORDS = ("--no-early-stop",)


def search(folder: Path, study: str, trials: int) -> subprocess.Popen[bytes]:
    """Start the search; the same command each time."""
    words = ("search", "--space", "space.yaml", "--trials", str(trials), "--study", study)
    with (folder / f"{study}.log").open("ab") as log:
        return subprocess.Popen(
            harness.program(*words, *MORE_WORDS),
            cwd=folder,
            env=harness.environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def moment(study: Path) -> str:
    """Where the search is, as far as its files say."""
    attempts = sorted(study.glob("*/*/attempt-*"), key=lambda path: path.stat().st_mtime)
    running = [path for path in attempts if not (path / "outcome.json").exists()]
    if not running:
        return "between trials" if attempts else "start"
    kind = running[-1].parents[1].name
    return f"{kind}: {read_beat(running[-1] / 'heartbeat-0.json').phase}"


def seconds_until(condition: Callable[[], bool], limit_s: float) -> float | None:
    """Return how long it took, or ``None`` if it took too long."""
    begun = time.monotonic()
    while time.monotonic() - begun < limit_s:
        if condition():
            return time.monotonic() - begun
        time.sleep(0.02)
    return None


def one_life(folder: Path, study: str, trials: int, delay_s: float) -> dict[str, Any] | None:
    """Run the search for ``delay_s`` seconds and kill it; ``None`` if it ended before."""
    path = folder / "runs" / study
    mark = processes.mark_of(path)
    process = search(folder, study, trials)
    try:
        code = process.wait(delay_s)
    except subprocess.TimeoutExpired:
        where = moment(path)
        alive = len(processes.find_of_study(mark))
        process.kill()
        process.wait()
        gone = seconds_until(lambda: not processes.find_of_study(mark), GONE_WITHIN_S)
        return {
            "study": study,
            "killed_after_s": round(delay_s, 2),
            "moment": where,
            "processes": alive,
            "gone_after_s": None if gone is None else round(gone, 2),
        }
    if code != 0:
        sys.exit(f"the search ended with {code}:\n{(folder / f'{study}.log').read_text()[-3000:]}")
    return None


def check(folder: Path, study: str, trials: int) -> dict[str, Any]:
    """Compare a complete study with what was asked for, by its report and by its folder."""
    document = harness.report(study, folder=folder)
    contents = read_study(StudyFolder(folder / "runs" / study))
    numbers = [one["number"] for one in document["trials"]]
    keys = [trial.header.key for trial in contents.trials]
    ends = [
        [attempt.outcome.state for attempt in trial.attempts if attempt.outcome is not None]
        for trial in contents.trials
    ]
    once = all(
        end and end[-1] != "interrupted" and set(end[:-1]) <= {"interrupted"} for end in ends
    )
    again = [one.header.round for one in contents.remeasurements if one.header.round is not None]
    return {
        "study": study,
        "trials": len(numbers),
        "interrupted_attempts": sum(end.count("interrupted") for end in ends),
        "confirmation_launches": len(again),
        "right": (
            numbers == list(range(trials))
            and len(set(keys)) == trials
            and sum(document["counts"].values()) == trials
            and once
            and not contents.problems
            and document["best"]["verdict"] is not None
        ),
    }


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--trials", type=int, default=6, help="trials of each study")
    parser.add_argument("--longest", type=float, default=18.0, help="seconds a search may live")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    kills: list[dict[str, Any]] = []
    studies: list[dict[str, Any]] = []
    about = harness.machine()

    def write(record: str, one: dict[str, Any]) -> None:
        print(json.dumps(one), file=sys.stderr)
        harness.append("kills", [{"record": record, **one}], options.output, about)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "space.yaml").write_text(SPACE)
        while len(kills) < options.kills or len(studies) == 0:
            study = f"kills-{len(studies)}"
            while True:
                enough = len(kills) >= options.kills
                delay_s = 3600.0 if enough else rng.uniform(0.1, options.longest)
                killed = one_life(folder, study, options.trials, delay_s)
                if killed is None:
                    break
                kills.append(killed)
                write("kill", killed)
            studies.append(check(folder, study, options.trials))
            write("study", studies[-1])
    survived = [one for one in kills if one["gone_after_s"] is None]
    wrong = [one for one in studies if not one["right"]]
    slowest = max((one["gone_after_s"] or 0.0 for one in kills if one not in survived), default=0.0)
    rows = [
        ["what", "number", "wrong"],
        ["kills", str(len(kills)), f"{len(survived)} survived; slowest end {slowest:.2f} s"],
        ["studies", str(len(studies)), str(len(wrong))],
        ["trials", str(sum(one["trials"] for one in studies)), ""],
    ]
    harness.finish("kills", [], rows, None, where=lambda: about)
    sys.exit(1 if survived or wrong else 0)


if __name__ == "__main__":
    main()
