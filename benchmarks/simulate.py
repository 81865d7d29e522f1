"""Whole studies whose truth is known: is the right configuration found, and nothing else claimed?

    PYTHONPATH=. python benchmarks/simulate.py --output benchmarks/results/DATE-simulate.jsonl
    PYTHONPATH=. python benchmarks/simulate.py --studies 0 --real 40 --output …

Each study is a real search (space file, sampler, judging, confirmation, report) over five
configurations; only the training steps are drawn (see simulated.py). ``identical``: five equal
configurations, and any winner is wrong. ``gain``: one of four is 3 % faster than the baseline and
the others are equal to it. ``ranked``: five configurations 2 % apart, in random order. ``compare``:
alternating launches of two configurations by ``autotune compare``'s own code, equal ones and ones
3 % apart. ``--real`` repeats the first three with real processes. Exits with 1 when a target is
missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
from simulated import Noise, ScriptedLauncher, SimulatedLauncher, Truth, run_rank

from autotune.contract.folder import StudyFolder
from autotune.launchers.local import LocalLauncher
from autotune.report import document
from autotune.search.compare import CompareRequest, run_compare
from autotune.search.interrupts import Interrupts
from autotune.search.planning import GPU_MEASURING
from autotune.search.request import SearchRequest, SearchResult
from autotune.search.session import run_search

BASE_S = 0.1
"""So short that a window without a GPU ends by its iterations or interval, not by its seconds: with
0.8 s an iteration it held 8 only, and far fewer studies were right."""
NUM_CONFIGS = 5
SPACE = """
version: 1
backend: ddp
workload: {{model: qwen3-tiny, global_batch: 16, data: {{lengths: ultrachat-like, max_length: 64}}}}
topology: {{processes: 2}}
baseline: {{bucket_cap_mb: {baseline}}}
params:
  bucket_cap_mb: {{choices: [{choices}]}}
search: {{finalists: {finalists}, seed: {seed}}}
"""
FOLDER = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
"""Thousands of small files are written: in memory, where that is possible."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
    """A kind of study with what must be reached."""

    name: str
    target: float
    at_most: bool
    """Whether ``target`` bounds the share from above."""
    truths: Callable[[random.Random], tuple[float, ...]]
    """Draws the true times; the baseline is the first."""
    right: Callable[[SearchResult, tuple[float, ...]], bool]
    """Whether the study counts."""


def _identical(draw: random.Random) -> tuple[float, ...]:
    del draw
    return (BASE_S,) * NUM_CONFIGS


def _gain(draw: random.Random) -> tuple[float, ...]:
    times = [BASE_S] * NUM_CONFIGS
    times[draw.randrange(1, NUM_CONFIGS)] /= 1.03
    return tuple(times)


def _ranked(draw: random.Random) -> tuple[float, ...]:
    times = [BASE_S * 1.02**i for i in range(NUM_CONFIGS)]
    draw.shuffle(times)
    return tuple(times)


def _winner(result: SearchResult) -> int | None:
    """Index of the configuration that the study claims to beat the baseline."""
    if result.verdict.verdict != "faster" or result.verdict.best_trial is None:
        return None
    trial = result.contents.trial(result.verdict.best_trial)
    return None if trial is None else trial.header.config["ddp.bucket_cap_mb"] - 1


def _finds_the_best(result: SearchResult, times: tuple[float, ...]) -> bool:
    return _winner(result) == times.index(min(times))


def _puts_in_order(result: SearchResult, times: tuple[float, ...]) -> bool:
    ranking = document.build(result.contents)["ranking"]
    by_number = {trial.number: trial for trial in result.contents.trials}
    found = [by_number[row["trial"]].header.config["ddp.bucket_cap_mb"] - 1 for row in ranking]
    return found == sorted(range(NUM_CONFIGS), key=lambda index: times[index])


SCENARIOS = (
    Scenario(
        name="identical",
        target=0.07,
        at_most=True,
        truths=_identical,
        right=lambda result, _times: _winner(result) is not None,
    ),
    Scenario(name="gain", target=0.90, at_most=False, truths=_gain, right=_finds_the_best),
    Scenario(name="ranked", target=0.90, at_most=False, truths=_ranked, right=_puts_in_order),
)


def one_study(
    scenario: Scenario,
    seed: int,
    make: Callable[[Truth], Any],
    *,
    finalists: int = 1,
    gpu_rules: bool = False,
) -> tuple[SearchResult, tuple[float, ...], int]:
    """Search and confirm; return the result, the true times and the number of launches."""
    times = scenario.truths(random.Random(f"{scenario.name}:{seed}"))
    truth = Truth(
        seconds=times,
        noise=Noise(launches=NUM_CONFIGS + 10),
        seed=seed,
        measuring=GPU_MEASURING if gpu_rules else None,
    )
    launcher = make(truth)
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        file = Path(name) / "space.yaml"
        choices = ", ".join(str(i + 1) for i in range(NUM_CONFIGS))
        file.write_text(SPACE.format(baseline=1, choices=choices, finalists=finalists, seed=seed))
        request = SearchRequest(
            space=str(file),
            trials=NUM_CONFIGS,
            study="s",
            runs=Path(name) / "runs",
            anchors=False,
            make_launcher=lambda *_: launcher,
        )
        result = run_search(request, lambda _event: None, interrupts=Interrupts())
        return result, times, launcher.num_launches


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparing:
    """Two configurations compared on request, with what must be reached."""

    name: str
    target: float
    at_most: bool
    faster: float
    """How much faster the second is in truth."""
    claims: tuple[str, ...]
    """Verdicts that count."""


COMPARISONS = (
    Comparing(
        name="compare identical",
        target=0.07,
        at_most=True,
        faster=1.0,
        claims=("a_faster", "b_faster"),
    ),
    Comparing(name="compare gain", target=0.90, at_most=False, faster=1.03, claims=("b_faster",)),
)


def compare_many(
    comparing: Comparing,
    repeats: int,
    make: Callable[[Truth], Any],
    *,
    finalists: int = 1,
    gpu_rules: bool = False,
) -> dict[str, Any]:
    """Compare the two trials of one study again and again, each time under other noise."""
    begun = time.perf_counter()
    seconds = (BASE_S, BASE_S / comparing.faster)
    verdicts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        runs = Path(name) / "runs"
        file = Path(name) / "space.yaml"
        text = SPACE.format(baseline=1, choices="1, 2", finalists=finalists, seed=0)
        file.write_text(text)

        def truth(seed: int) -> Truth:
            rules = GPU_MEASURING if gpu_rules else None
            noise = Noise(launches=10)
            return Truth(seconds=seconds, noise=noise, seed=seed, measuring=rules)

        # Alike for the search, so that it ends without a confirmation to be mixed up with.
        search = SearchRequest(
            space=str(file),
            trials=2,
            study="s",
            runs=runs,
            anchors=False,
            make_launcher=lambda *_: make(truth(-1)),
        )
        study = run_search(search, lambda _event: None, interrupts=Interrupts()).contents.study
        for seed in range(repeats):
            launcher = make(truth(seed))
            copy = Path(name) / "copy"
            shutil.copytree(runs, copy)
            request = CompareRequest(
                names=("0", "1"),
                best=None,
                study=study,
                runs=copy,
                make_launcher=lambda *_, launcher=launcher: launcher,
            )
            found = run_compare(request, lambda _event: None, interrupts=Interrupts())
            verdicts[found.result.verdict] += 1
            shutil.rmtree(copy)
    count = sum(verdicts[word] for word in comparing.claims)
    return {
        **_summary(comparing, count, repeats, begun),
        "verdicts": dict(verdicts),
        "launches_per_study": 10.0,
        "finalists": finalists,
        "gpu_rules": gpu_rules,
    }


def run(scenario: Scenario, studies: int, make: Callable[[Truth], Any], **how: Any) -> dict:
    """Run the studies of one scenario and return what came of them."""
    begun = time.perf_counter()
    count, launches = 0, 0
    verdicts: Counter[str] = Counter()
    for seed in range(studies):
        result, times, number = one_study(scenario, seed, make, **how)
        count += scenario.right(result, times)
        launches += number
        verdicts[result.verdict.verdict] += 1
    return {
        **_summary(scenario, count, studies, begun),
        "verdicts": dict(verdicts),
        "launches_per_study": launches / studies,
        **how,
    }


def _summary(asked: Scenario | Comparing, count: int, studies: int, begun: float) -> dict[str, Any]:
    """The share that counts, beside its target."""
    share = count / studies
    return {
        "scenario": asked.name,
        "studies": studies,
        "count": count,
        "share": share,
        "share_interval": list(wilson(count, studies)),
        "target": asked.target,
        "at_most": asked.at_most,
        "reached": share <= asked.target if asked.at_most else share >= asked.target,
        "wall_s": round(time.perf_counter() - begun, 1),
    }


def wilson(count: int, total: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    z = 1.959964
    share = count / total
    middle = share + z * z / (2 * total)
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return (middle - half) / scale, (middle + half) / scale


def with_processes(studies: int, **how: Any) -> list[dict[str, Any]]:
    """Run the studies with real ranks, forked by one server, spread over the scenarios."""
    results = []
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        launcher = LocalLauncher(
            StudyFolder(Path(name) / "server"),
            2,
            "cpu",
            backends=("ddp",),
            entry=f"simulated:{run_rank.__name__}",
        )
        try:
            for index, scenario in enumerate(SCENARIOS):
                number = len(range(index, studies, len(SCENARIOS)))
                if number:
                    made = run(scenario, number, lambda t: ScriptedLauncher(launcher, t), **how)
                    results.append({**made, "processes": "real"})
        finally:
            launcher.close()
    return results


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--studies", type=int, default=400, help="of each scenario, simulated")
    parser.add_argument("--real", type=int, default=0, help="studies with real processes")
    names = [one.name for one in (*SCENARIOS, *COMPARISONS)]
    parser.add_argument("--scenario", nargs="+", choices=names)
    parser.add_argument("--finalists", type=int, default=1, choices=(1, 2, 3))
    parser.add_argument(
        "--gpu-rules",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="warm-up and window as on a GPU",
    )
    options = parser.parse_args()
    how = {"finalists": options.finalists, "gpu_rules": options.gpu_rules}
    results: list[dict[str, Any]] = []
    if options.studies:
        for scenario in SCENARIOS:
            if not options.scenario or scenario.name in options.scenario:
                made = run(scenario, options.studies, SimulatedLauncher, **how)
                results.append({**made, "processes": "simulated"})
        for comparing in COMPARISONS:
            if not options.scenario or comparing.name in options.scenario:
                made = compare_many(comparing, options.studies, SimulatedLauncher, **how)
                results.append({**made, "processes": "simulated"})
    if options.real:
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
        )
        results += with_processes(options.real, **how)
    rows = [["scenario", "ranks", "studies", "share", "95 % interval", "target", "launches"]]
    rows += [row_of(result) for result in results]
    harness.finish("simulate", results, rows, options.output)
    # A few dozen real studies show that the parts work together; they cannot prove a share.
    judged = [one for one in results if one["processes"] == "simulated"]
    return 0 if all(one["reached"] for one in judged) else 1


def row_of(result: dict[str, Any]) -> list[str]:
    """One line of the table."""
    low, high = result["share_interval"]
    sign = "≤" if result["at_most"] else "≥"
    return [
        result["scenario"],
        result["processes"],
        str(result["studies"]),
        f"{result['share']:.1%}",
        f"{low:.1%} … {high:.1%}",
        f"{sign} {result['target']:.0%}",
        f"{result['launches_per_study']:.1f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
