"""What ranks write and what the coordinator makes of it: a measurement or a failure, never both.

There is no sentinel: a failed trial has no time, a measured one has no failure, and
construction refuses every other combination.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final, Literal

from autotune.contract.extensions import ExtensionBuild
from autotune.contract.failures import FailureKind, Phase
from autotune.contract.kernels import KernelCheck
from autotune.contract.plan import CheckPoint, MicroStep

ReadBackLevel = Literal["live", "parsed", "effect", "schedule", "environment"]
RankStatus = Literal["measured", "stopped_early", "checked", "built", "failed"]
State = Literal["complete", "stopped_early", "failed", "interrupted"]


SHORTEST_S: Final = 1e-12
LONGEST_S: Final = 1e12
"""Beyond these a number in a record is no time, and the quotient of two may not be a number."""


def _positive(name: str, value: float) -> None:
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be a positive, finite number of seconds, not {value!r}")
    if not SHORTEST_S <= value <= LONGEST_S:
        raise ValueError(f"{name} is no time that a trial can have: {value!r} s")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadBack:
    """One knob as the running engine has it."""

    requested: Any
    actual: Any
    level: ReadBackLevel
    """``live``: the engine's or module's own state; ``parsed``: the engine's parsed config;
    ``effect``: seen by what it does; ``schedule``: the micro-steps that ran; ``environment``: what
    the process has set when the engine is built."""

    @property
    def in_effect(self) -> bool:
        """Whether type and value agree (an integer counts as the equal float)."""
        if isinstance(self.requested, bool) or isinstance(self.actual, bool):
            return self.requested is self.actual
        return bool(self.requested == self.actual)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankError:
    """The first error of one rank."""

    type: str
    """Qualified name of the exception's class."""
    message: str
    traceback: str
    at: float
    """``time.time()`` when it was caught (s since the epoch)."""
    phase: Phase
    iteration: int | None = None
    """Iterations completed before it, where the phase has iterations."""
    kind: FailureKind | None = None
    """The rank's own classification, where it knows better than the text."""
    peak_memory: PeakMemory | None = None
    """Of a rank that ran out of memory, up to then; both peaks are the same number."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankMeasurement:
    """What one rank measured. All times in seconds."""

    warmup_s: tuple[float, ...]
    """Raw time of every warm-up iteration, check iterations first."""
    iteration_s: tuple[float, ...]
    """Raw time of every iteration in the timed window, whole cycles of the batch stream."""
    window_s: float
    """Host clock over the cycles of the timed window, without what the ranks do between them."""
    unsteady: bool
    """Warm-up ended without two cycles that agree, or mean and median differ by over 3 %."""
    checks: tuple[CheckPoint, ...]
    final_loss: float | None
    """Loss of the last timed iteration; must be finite. ``None``: a command did not report it."""
    losses: tuple[float, ...] = ()
    """Mean token loss of every iteration in order, check and warm-up first, cycles that a rank
    compiled in included; empty for a command and in records of earlier versions."""
    grad_norms: tuple[float, ...] = ()
    """Gradient norms of the same iterations."""
    peak_timed_bytes: int
    peak_worst_case_bytes: int
    worst_case_is_bound: bool = False
    """The worst case was not run: it needs at most so much, far less than the limit."""
    memory_limit_bytes: int
    """What the rank may use before the margin is taken off."""
    peak_first_bytes: int = 0
    """Peak of the first iteration, at whose end the optimizer makes its state; 0: not taken."""
    alloc_retries: int = 0
    """Times in the timed window that the allocator had to give its cache back to go on."""
    recompiled_iterations: int = 0
    """Iterations of whole cycles that were run again, untimed, because a rank compiled in them."""
    throttled: dict[str, float] = dataclasses.field(default_factory=dict)
    """Why the device's clocks were held down in the timed window (``power``, ``thermal``, …), to
    the share of it."""
    compile_s: float = 0.0
    """Time of warm-up iterations beyond their steady time: compilation, tracing, first step."""
    read_back: dict[str, ReadBack]
    implementations: dict[str, str]
    """Layer type to the implementation that is bound in the live model."""
    backward: dict[str, str] = dataclasses.field(default_factory=dict)
    """Layer type to the autograd functions that ran in its backward, views left out."""
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.iteration_s:
            raise ValueError("a measurement needs at least one timed iteration")
        for seconds in (*self.warmup_s, *self.iteration_s):
            _positive("an iteration's time", seconds)
        _positive("window_s", self.window_s)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankRecord:
    """The file that each rank writes once, atomically, when it ends."""

    schema_version: int = 1
    rank: int
    pid: int
    plan_digest: str
    status: RankStatus
    phase: Phase
    """The last phase that was entered."""
    started_at: float
    ended_at: float
    phase_s: dict[str, float]
    """Wall-clock seconds spent in each phase."""
    error: RankError | None = None
    measurement: RankMeasurement | None = None
    kernel: KernelCheck | None = None
    """Of a rank that compared a kernel instead of running iterations."""
    extension: ExtensionBuild | None = None
    """Of a rank that built an extension instead."""

    def __post_init__(self) -> None:
        if (self.status == "failed") != (self.error is not None):
            raise ValueError("a rank record has an error exactly when its status is 'failed'")
        if (self.status in ("measured", "stopped_early")) != (self.measurement is not None):
            raise ValueError("a rank record has a measurement exactly when it was measured")
        if (self.status == "checked") != (self.kernel is not None):
            raise ValueError("a rank record has a kernel check exactly when it is 'checked'")
        if (self.status == "built") != (self.extension is not None):
            raise ValueError("a rank record has an extension exactly when its status is 'built'")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """Peak over ranks, in bytes."""

    timed: int
    worst_case: int
    limit: int
    is_bound: bool = False
    """``worst_case`` is an upper bound on some rank, which left the probe out."""
    first: int = 0
    """In the first iteration, at whose end the optimizer makes its state; 0: not taken."""

    @property
    def measured(self) -> int:
        """The largest that was seen: of the worst case, where it was run."""
        return self.timed if self.is_bound else max(self.timed, self.worst_case)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gap:
    """How far a number lies from the baseline's, as a share of it."""

    apart: float
    """The largest over the check iterations that were compared."""
    allowed: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """A trial's result, of the slowest rank; the rank records hold the raw times of all."""

    s_per_it: float
    """Window time ÷ iterations of the slowest rank: the objective."""
    low: float
    high: float
    """95 % interval of ``s_per_it`` within this launch (not between launches)."""
    median_s: float
    p95_s: float
    batch_median_s: tuple[float, ...]
    """Median iteration time of each batch of the cycle."""
    iterations: int
    iteration_s: tuple[float, ...] = ()
    """Raw time of every timed iteration, in order; empty in records of earlier versions."""
    window_s: float
    warmup_iterations: int
    warmup_total_s: float
    compile_s: float
    unsteady: bool
    tokens_per_s: float | None
    """Real (unpadded) tokens of all ranks per second; ``None`` for a command, whose tokens are
    not known, as ``micro_steps``, ``padding_share`` and ``distinct_shapes``."""
    samples_per_s: float
    mfu: float | None
    peak_memory: PeakMemory
    micro_steps: int | None
    padding_share: float | None
    distinct_shapes: int | None
    checks: tuple[CheckPoint, ...]
    final_loss: float | None
    losses: tuple[float, ...] = ()
    grad_norms: tuple[float, ...] = ()
    """As each rank's: they exchange them."""
    gaps: dict[str, Gap] = dataclasses.field(default_factory=dict)
    """What the numerics gate found: ``first_loss``, ``first_grad_norm``, ``loss``, ``grad_norm``
    (of later check iterations), ``cycle_loss``, ``cycle_grad_norm`` (means over each cycle of the
    batches). Empty for the baseline's first launch, which the others meet."""
    read_back: dict[str, ReadBack]
    implementations: dict[str, str]
    backward: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)
    alloc_retries: int = 0
    """Times in the timed window that a rank's allocator had to give its cache back; their sum."""
    recompiled_iterations: int = 0
    """As each rank's: they decide together."""
    throttled: dict[str, float] = dataclasses.field(default_factory=dict)
    """Why a device's clocks were held down, to the largest share of the window on any rank."""
    memory_margin_bytes: int = 0
    """What had to stay free on every rank."""
    worst_case: MicroStep | None = None
    """The micro-step that the memory probe stands for."""

    def __post_init__(self) -> None:
        for name in ("s_per_it", "low", "high", "median_s", "p95_s", "window_s"):
            _positive(name, getattr(self, name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a trial has no valid time."""

    kind: FailureKind
    reason: str
    """One line for people."""
    rank: int | None = None
    phase: Phase | None = None
    iteration: int | None = None
    peak_memory: PeakMemory | None = None
    detail: str = ""
    """Traceback or the end of the log."""
    measured_s_per_it: float | None = None
    """Speed of a configuration that ran but was not valid: shown, never ranked."""
    combination: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Settings, by full knob name, that are known to have brought it about together: every
    configuration that has them all would fail like this."""
    limit_s: float | None = None
    """What the whole trial was allowed, where it passed a limit; with more it may succeed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the coordinator judged of one attempt."""

    schema_version: int = 1
    plan_digest: str
    state: State
    measurement: Measurement | None = None
    failure: Failure | None = None
    submitted_at: float
    """``time.time()`` at submission."""
    wall_s: float
    """From submission until all processes were reaped."""
    overhead_s: float
    """``wall_s`` less warm-up and timed iterations (and the memory probe counts as overhead)."""
    timed_s: float
    """Seconds of the timed window; 0 where there is none."""
    phase_s: dict[str, float] = dataclasses.field(default_factory=dict)
    """Seconds in each phase, the largest over ranks."""

    def __post_init__(self) -> None:
        measured = self.state in ("complete", "stopped_early")
        if measured != (self.measurement is not None):
            raise ValueError(f"state {self.state!r} and measurement do not fit together")
        if measured == (self.failure is not None):
            raise ValueError(f"state {self.state!r} and failure do not fit together")
        if self.failure is not None:
            interrupted = self.failure.kind == "interrupted"
            if interrupted != (self.state == "interrupted"):
                raise ValueError(f"state {self.state!r} does not fit kind {self.failure.kind!r}")
