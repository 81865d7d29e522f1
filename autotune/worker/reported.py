"""What the ranks of a command report, as a trial's checks, warm-up and timed window.

An iteration lies between two reports of a rank. The first report ends start-up, compilation and
the first step, none of which is timed. The rules of warm-up and window are those of autotune's own
step; they are applied to ``cycle`` iterations at a time, on the slowest rank of each iteration.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from autotune.analysis import numerics, timing, windows
from autotune.contract.failures import Phase
from autotune.contract.folder import AttemptFolder
from autotune.contract.outcome import RankMeasurement
from autotune.contract.plan import CheckPoint, Measuring, Plan
from autotune.contract.steps import PATTERN, Step, StepFile
from autotune.worker.failures import NotInEffectError, NumericsError, TrialError

_MAX_FILES: Final = 65_536
LATE_S: Final = 3.0
"""How long a rank may report nothing when another has reported enough. Ranks run in step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window:
    """Warm-up and timed window among the iterations so far, on the slowest rank. In seconds."""

    warmup_s: tuple[float, ...]
    iteration_s: tuple[float, ...]
    """Whole cycles; empty until one is complete."""
    steady: bool
    unsteady: bool
    """Warm-up did not settle, or mean and median of the window part."""
    verdict: windows.Verdict


def window_of(times: Sequence[Sequence[float]], cycle: int, measuring: Measuring) -> Window | None:
    """Return the window, or ``None`` while the warm-up lasts.

    Args:
        times: Of each rank, the seconds of its iterations; extra ones of a rank are left out.
        cycle: Iterations that are taken together.
        measuring: The plan's rules.
    """
    count = min(map(len, times), default=0)
    slowest = [max(rank[i] for rank in times) for i in range(count)]
    ends = range(cycle, count + 1, cycle)
    states = ((end, windows.warm(slowest[:end], cycle, measuring)) for end in ends)
    warm, state = next(((end, state) for end, state in states if state != "no"), (0, "no"))
    if state == "no":
        return None
    end = warm
    verdict: windows.Verdict = "go_on"
    for end in range(warm + cycle, count + 1, cycle):
        verdict = windows.window(slowest[warm:end], cycle, measuring)
        if verdict != "go_on":
            break
    mine = max(times, key=lambda rank: sum(rank[warm:end]))
    steady = state == "yes"
    timed = slowest[warm:end]
    return Window(
        warmup_s=tuple(mine[:warm]),
        iteration_s=tuple(mine[warm:end]),
        steady=steady,
        unsteady=not steady or (bool(timed) and timing.is_unsteady(timed, cycle)),
        verdict=verdict,
    )


def wanted_steps(measuring: Measuring, cycle: int) -> int:
    """Return the number of reports after which the rules have certainly ended the window."""
    warm = max(2, measuring.warmup_max_cycles) * cycle
    timed = -(-measuring.window_iterations // cycle) * cycle
    return 1 + warm + timed


class Reports:
    """The step files of one launch.

    Args:
        plan: Its rules, numerics and topology.
        folder: Where the ranks append.
    """

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._files: dict[Path, StepFile] = {}
        self._enough_at: float | None = None
        self.window: Window | None = None
        """Warm-up and timed window as of the last :meth:`read`; ``None`` while warm-up lasts."""

    def read(self) -> None:
        """Take up what was appended since the last call.

        Raises:
            TrialError: The reports cannot be those of this trial's ranks, a number is wrong, or
                the folder is gone.
        """
        if not AttemptFolder(self._folder).plan_file.exists():
            raise TrialError(
                "the trial's folder was emptied or removed while the command ran; give what it "
                "clears a folder of its own below {trial_dir}"
            )
        for path in itertools.islice(sorted(self._folder.glob(PATTERN)), _MAX_FILES):
            self._files.setdefault(path, StepFile(path))
        try:
            files = [file.read() for file in self._files.values()]
        except ValueError as error:
            raise TrialError(f"a reported step cannot be read: {error}") from error
        self._check_ranks([file for file in files if file.rank is not None])
        self._check_numbers()
        times = [
            [after.at - before.at for before, after in itertools.pairwise(file.steps)]
            for file in self._files.values()
        ]
        self.window = None if self._absent else window_of(times, self._cycle, self._plan.measuring)
        self._require_all()

    @property
    def missing(self) -> str:
        """Ranks of the command that have reported nothing, in words; empty where all have."""
        ranks = ", ".join(map(str, self._absent))
        return f"rank{'s' * (len(self._absent) > 1)} {ranks}" if ranks else ""

    @property
    def _absent(self) -> tuple[int, ...]:
        """Known only where the environment of those that report says how many there are."""
        sizes = [file.world_size or 0 for file in self._files.values()]
        reported = {file.rank for file in self._files.values() if file.steps}
        return tuple(rank for rank in range(max(sizes, default=0)) if rank not in reported)

    def _require_all(self) -> None:
        """Every rank must report: the slowest one's time counts, and the fullest one's memory."""
        enough = wanted_steps(self._plan.measuring, self._cycle)
        if not self._absent or all(len(file.steps) < enough for file in self._files.values()):
            return
        self._enough_at = self._enough_at or time.monotonic()
        if time.monotonic() - self._enough_at > LATE_S:
            raise TrialError(
                f"{self.missing} never called autotune.report_step(), which every rank must do "
                "after each step"
            )

    @property
    def num_steps(self) -> int:
        """Steps that every rank has reported."""
        if self._absent:
            return 0
        return min((len(file.steps) for file in self._files.values()), default=0)

    @property
    def phase(self) -> Phase:
        """What the steps so far belong to."""
        if self.num_steps == 0:
            return "build"
        if self.num_steps < self._plan.measuring.check_iterations:
            return "check"
        return "warmup" if self.window is None else "measure"

    def checks(self) -> tuple[CheckPoint, ...]:
        """Return the check iterations so far: the mean loss and the largest norm over ranks."""
        count = min(self.num_steps, self._plan.measuring.check_iterations)
        return tuple(
            CheckPoint(loss=_mean(self._numbers(i, "loss")), grad_norm=_largest(norms))
            for i in range(count)
            for norms in [self._numbers(i, "grad_norm")]
        )

    def measurement(self, window: Window, *, limit_bytes: int, notes: Any) -> RankMeasurement:
        """Return the record of a command whose window is long enough.

        Args:
            window: Its warm-up and window.
            limit_bytes: Host memory that one rank may use.
            notes: What the record should say besides.
        """
        last = len(window.warmup_s) + len(window.iteration_s)
        peak, limit = self._peak(last, limit_bytes)
        return RankMeasurement(
            warmup_s=window.warmup_s,
            iteration_s=window.iteration_s,
            window_s=sum(window.iteration_s),
            unsteady=window.unsteady,
            checks=self.checks(),
            final_loss=_mean(self._numbers(last, "loss")),
            peak_timed_bytes=peak,
            peak_worst_case_bytes=peak,
            memory_limit_bytes=limit,
            compile_s=windows.compile_seconds(window.warmup_s, window.iteration_s, self._cycle),
            read_back={},
            implementations={},
            notes=notes,
        )

    @property
    def _cycle(self) -> int:
        return self._plan.workload.distinct_batches

    def _at(self, index: int) -> list[Step]:
        return [file.steps[index] for file in self._files.values()]

    def _numbers(self, index: int, name: str) -> list[float]:
        values = (getattr(step, name) for step in self._at(index))
        return [value for value in values if value is not None]

    def _peak(self, last: int, host_limit: int) -> tuple[int, int]:
        """Peak of the fullest rank and its limit: of the device where torch could tell it."""
        steps = self._at(last)
        on_device = [s for s in steps if s.device is not None and s.device_limit is not None]
        if self._plan.topology.device == "cuda" and on_device:
            fullest = max(on_device, key=lambda step: (step.device or 0) / (step.device_limit or 1))
            return fullest.device or 0, fullest.device_limit or 0
        return max(step.resident for step in steps), host_limit

    def _check_ranks(self, files: Sequence[StepFile]) -> None:
        ranks = [file.rank for file in files]
        twice = next((rank for rank in ranks if ranks.count(rank) > 1), None)
        if twice is not None:
            raise TrialError(
                f"two processes reported steps as rank {twice}: each rank needs its own RANK "
                "variable, and a rank must not start anew"
            )
        expected = self._plan.topology.processes
        for file in files:
            if file.world_size is not None and file.world_size != expected:
                raise NotInEffectError(
                    f"the command runs {file.world_size} processes, and topology.processes is "
                    f"{expected}: the rendered batch sizes are for another number"
                )

    def _check_numbers(self) -> None:
        for file in self._files.values():
            for index, step in enumerate(file.steps):
                if not step.is_finite:
                    raise NumericsError(
                        f"step {index + 1} reports loss {step.loss!r} and gradient norm "
                        f"{step.grad_norm!r}"
                    )
        checks = self.checks()
        if checks:
            problem = numerics.first_problem(checks, self._plan.numerics)
            if problem is not None:
                raise NumericsError(problem)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _largest(values: Sequence[float]) -> float | None:
    return max(values, default=None)
