"""Whole studies whose truth is known: is the right configuration found, and nothing else claimed?

    PYTHONPATH=. python benchmarks/simulate.py --output benchmarks/results/DATE-simulate.jsonl
    PYTHONPATH=. python benchmarks/simulate.py --studies 0 --real 40

``identical``: five equal configurations, and any winner is wrong. ``gain``: one of four is 3 %
faster than the baseline and the others are equal to it. ``ranked``: five configurations 2 % apart,
in random order. ``compare``: alternating launches of two configurations as ``autotune compare``
runs them, equal ones and ones 3 % apart. The simulated studies run the program's loop, judging,
ranking and confirmation in memory (see in_memory.py); ``--real`` repeats the first three as whole
searches, with files, database, sampler and real processes that report drawn times. Exits with 1
when a target is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import in_memory
from simulated import KNOB, Noise, ScriptedLauncher, Truth, run_rank

from autotune.contract.folder import StudyFolder
from autotune.launchers.base import Launcher
from autotune.launchers.local import LocalLauncher
from autotune.report import document
from autotune.search.compare import ROUNDS, Named, take_turns
from autotune.search.confirm import confirm
from autotune.search.interrupts import Interrupts
from autotune.search.planning import CPU_MEASURING, GPU_MEASURING
from autotune.search.preflight import Prepared
from autotune.search.request import SearchRequest
from autotune.search.session import run_search
from autotune.store.comparisons import ComparisonHeader
from autotune.store.records import StudyContents

BASE_S = 0.1
"""Without a GPU a window is then 24 iterations; with 0.8 s its 4 s end it after 8."""
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
    right: Callable[[StudyContents, tuple[float, ...]], bool]
    """Whether the study counts."""


def _identical(_draw: random.Random) -> tuple[float, ...]:
    return (1.0,) * NUM_CONFIGS


def _gain(draw: random.Random) -> tuple[float, ...]:
    times = [1.0] * NUM_CONFIGS
    times[draw.randrange(1, NUM_CONFIGS)] /= 1.03
    return tuple(times)


def _ranked(draw: random.Random) -> tuple[float, ...]:
    times = [1.02**i for i in range(NUM_CONFIGS)]
    draw.shuffle(times)
    return tuple(times)


def _index(contents: StudyContents, number: int) -> int:
    """Which configuration a trial ran."""
    trial = contents.trial(number)
    assert trial is not None
    return int(trial.header.config[KNOB]) - 1


def _winner(contents: StudyContents) -> int | None:
    """Index of the configuration that the study claims to beat the baseline."""
    verdict = contents.verdict
    assert verdict is not None
    if verdict.verdict != "faster" or verdict.best_trial is None:
        return None
    return _index(contents, verdict.best_trial)


def _finds_the_best(contents: StudyContents, times: tuple[float, ...]) -> bool:
    return _winner(contents) == times.index(min(times))


def _puts_in_order(contents: StudyContents, times: tuple[float, ...]) -> bool:
    found = [_index(contents, row["trial"]) for row in document.ranking(contents)]
    return found == sorted(range(NUM_CONFIGS), key=lambda index: times[index])


SCENARIOS = (
    Scenario(
        name="identical",
        target=0.07,
        at_most=True,
        truths=_identical,
        right=lambda contents, _times: _winner(contents) is not None,
    ),
    Scenario(name="gain", target=0.90, at_most=False, truths=_gain, right=_finds_the_best),
    Scenario(name="ranked", target=0.90, at_most=False, truths=_ranked, right=_puts_in_order),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conditions:
    """What the studies of one run have in common."""

    finalists: int = 1
    base_s: float = BASE_S
    gpu_rules: bool = False
    window_iterations: int | None = None
    """Iterations of each window; ``None``: as the rules end it."""
    iteration: float = Noise.iteration
    launch: float = Noise.launch
    spikes: float = Noise.spikes

    def truth(self, times: tuple[float, ...], seed: int, launches: int) -> Truth:
        """The truth of one study; ``times`` are relative to the base."""
        rules = GPU_MEASURING if self.gpu_rules else None
        if self.window_iterations is not None:
            rules = dataclasses.replace(
                rules or CPU_MEASURING,
                interval_share=0.0,
                window_s=1e9,
                window_iterations=self.window_iterations,
            )
        return Truth(
            seconds=tuple(self.base_s * one for one in times),
            noise=Noise(
                launches=launches,
                iteration=self.iteration,
                launch=self.launch,
                spikes=self.spikes,
            ),
            seed=seed,
            measuring=rules,
        )

    def space(self, num_choices: int, seed: int = 0) -> str:
        """The space file."""
        choices = ", ".join(str(i + 1) for i in range(num_choices))
        return SPACE.format(baseline=1, choices=choices, finalists=self.finalists, seed=seed)


@functools.cache
def _prepared(conditions: Conditions, num_choices: int) -> Prepared:
    return in_memory.prepared_study(conditions.space(num_choices), num_choices)


def one_study(scenario: Scenario, seed: int, conditions: Conditions) -> tuple[bool, str, int]:
    """Search and confirm in memory; return whether it counts, the verdict, and the launches."""
    draw = random.Random(f"{scenario.name}:{seed}")
    times = scenario.truths(draw)
    truth = conditions.truth(times, seed, NUM_CONFIGS + 10)
    study = in_memory.open_study(_prepared(conditions, NUM_CONFIGS), truth, draw)
    study.loop.run()
    verdict = confirm(study.loop, study.recorder, lambda _event: None)
    contents = study.recorder.contents()
    return scenario.right(contents, times), verdict.verdict, in_memory.num_launches(contents)


def real_study(
    scenario: Scenario, seed: int, conditions: Conditions, launcher: Launcher
) -> tuple[bool, str, int]:
    """As :func:`one_study`, but the whole program with real processes."""
    times = scenario.truths(random.Random(f"{scenario.name}:{seed}"))
    scripted = ScriptedLauncher(launcher, conditions.truth(times, seed, NUM_CONFIGS + 10))
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        file = Path(name) / "space.yaml"
        file.write_text(conditions.space(NUM_CONFIGS, seed))
        request = SearchRequest(
            space=str(file),
            trials=NUM_CONFIGS,
            study="s",
            runs=Path(name) / "runs",
            anchors=False,
            make_launcher=lambda *_: scripted,
        )
        result = run_search(request, lambda _event: None, interrupts=Interrupts())
        counts = scenario.right(result.contents, times)
        return counts, result.verdict.verdict, scripted.num_launches


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
    comparing: Comparing, repeats: int, conditions: Conditions | None = None
) -> dict[str, Any]:
    """Compare two configurations again and again, each time under other noise."""
    begun = time.perf_counter()
    conditions = conditions or Conditions()
    prepared = _prepared(conditions, 2)
    verdicts: Counter[str] = Counter()
    for seed in range(repeats):
        truth = conditions.truth((1.0, 1.0 / comparing.faster), seed, 12)
        study = in_memory.open_study(prepared, truth, random.Random(seed))
        study.loop.run()
        trials = study.recorder.trials()
        header = ComparisonHeader(
            number=0,
            names=("0", "1"),
            trials=(0, 1),
            rounds=ROUNDS,
            context=prepared.context,
            created_at=0.0,
        )
        a, b = (Named(name=str(trial.number), trial=trial) for trial in trials)
        verdicts[take_turns(study, header, (a, b)).verdict] += 1
    count = sum(verdicts[word] for word in comparing.claims)
    return {
        **_summary(comparing, count, repeats, begun),
        "verdicts": dict(verdicts),
        "launches_per_study": 2.0 * ROUNDS,
        **dataclasses.asdict(conditions),
        "processes": "simulated",
    }


def run(
    scenario: Scenario,
    studies: int,
    conditions: Conditions | None = None,
    study: Callable[[Scenario, int, Conditions], tuple[bool, str, int]] = one_study,
) -> dict[str, Any]:
    """Run the studies of one scenario and return what came of them."""
    begun = time.perf_counter()
    conditions = conditions or Conditions()
    count, launches = 0, 0
    verdicts: Counter[str] = Counter()
    for seed in range(studies):
        counts, verdict, number = study(scenario, seed, conditions)
        count += counts
        launches += number
        verdicts[verdict] += 1
    return {
        **_summary(scenario, count, studies, begun),
        "verdicts": dict(verdicts),
        "launches_per_study": launches / studies,
        **dataclasses.asdict(conditions),
        "processes": "simulated" if study is one_study else "real",
    }


def _summary(asked: Scenario | Comparing, count: int, studies: int, begun: float) -> dict[str, Any]:
    """The share that counts, beside its target."""
    share = count / studies
    return {
        "scenario": asked.name,
        "studies": studies,
        "count": count,
        "share": share,
        "share_interval": list(harness.wilson(count, studies)),
        "target": asked.target,
        "at_most": asked.at_most,
        "reached": share <= asked.target if asked.at_most else share >= asked.target,
        "wall_s": round(time.perf_counter() - begun, 1),
    }


def with_processes(studies: int, conditions: Conditions) -> Iterator[dict[str, Any]]:
    """Run whole searches with real ranks, forked by one server, spread over the scenarios."""
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
                    study = functools.partial(real_study, launcher=launcher)
                    yield run(scenario, number, conditions, study)
        finally:
            launcher.close()


def all_results(options: argparse.Namespace, conditions: Conditions) -> Iterator[dict[str, Any]]:
    """What each scenario came to, as it ends."""
    if options.studies:
        for scenario in SCENARIOS:
            if scenario.name in options.scenario:
                yield run(scenario, options.studies, conditions)
        for comparing in COMPARISONS:
            if comparing.name in options.scenario:
                yield compare_many(comparing, options.studies, conditions)
    if options.real:
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
        )
        yield from with_processes(options.real, conditions)


def _options() -> argparse.Namespace:
    parser = harness.parser(__doc__)
    parser.add_argument("--studies", type=int, default=400, help="of each scenario, simulated")
    parser.add_argument("--real", type=int, default=0, help="studies with real processes")
    names = [one.name for one in (*SCENARIOS, *COMPARISONS)]
    parser.add_argument("--scenario", nargs="+", choices=names, default=names)
    parser.add_argument("--finalists", type=int, default=1, choices=(1, 2, 3))
    parser.add_argument("--base-s", type=float, default=BASE_S, help="true s/it")
    parser.add_argument("--window-iterations", type=int, help="in place of the window's rules")
    parser.add_argument("--iteration", type=float, default=Noise.iteration, help="noise of one")
    parser.add_argument("--launch", type=float, default=Noise.launch, help="noise of launches")
    parser.add_argument("--spikes", type=float, default=Noise.spikes, help="share of 1.5 times")
    parser.add_argument(
        "--gpu-rules",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="warm-up and window as on a GPU",
    )
    return parser.parse_args()


def main() -> int:
    options = _options()
    fields = {field.name for field in dataclasses.fields(Conditions)}
    conditions = Conditions(**{k: v for k, v in vars(options).items() if k in fields})
    about, results = harness.machine(), []
    for result in all_results(options, conditions):
        harness.append("simulate", [result], options.output, about)
        results.append(result)
    rows = [["scenario", "ranks", "studies", "share", "95 % interval", "target", "launches"]]
    rows += [row_of(result) for result in results]
    harness.finish("simulate", [], rows, None, where=lambda: about)
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
