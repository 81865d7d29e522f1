"""Check, warm-up, timed window and memory probe of a built engine.

*Garbage collection.* Objects of the build are frozen out of later collections and automatic
collection is off while iterations are timed: a collection of some 100 ms at a random place would
be noise of the measuring, not a property of the configuration. The young generation is collected
at each cycle's end, outside the marks, so that reference cycles cannot hold memory for long.
That and the heartbeat come before the ranks' exchange, which they leave together: what one rank
spends longer on is not waited for by another in the next cycle, where it would be timed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import time
from collections.abc import Sequence
from typing import Final

import torch

from autotune.analysis import numerics, timing, windows
from autotune.contract.outcome import RankStatus
from autotune.contract.plan import CheckPoint, Plan
from autotune.worker import compiling
from autotune.worker.clocks import watch_for
from autotune.worker.failures import NumericsError
from autotune.worker.heartbeat import Heartbeat
from autotune.worker.memory import MemoryMeter
from autotune.worker.step import Iteration, Stepper
from autotune.worker.timing import marks_for

FAR_FROM_LIMIT: Final = 0.5
"""A bound of at most this share of what a rank may use beside the margin needs no measurement:
twice as much would fit, and the margin with it."""


@dataclasses.dataclass(kw_only=True)
class Timed:
    """Iterations of one phase: seconds on this rank and on the slowest one, and losses."""

    mine_s: list[float] = dataclasses.field(default_factory=list)
    slowest_s: list[float] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)
    """Mean token loss over the global batch."""
    norms: list[float] = dataclasses.field(default_factory=list)
    compiled: bool = False
    """Whether a rank compiled in the last iterations."""

    def add(self, other: Timed) -> None:
        """Append later iterations."""
        self.mine_s += other.mine_s
        self.slowest_s += other.slowest_s
        self.losses += other.losses
        self.norms += other.norms


class Meter:
    """Runs the phases between build and teardown on one rank."""

    def __init__(
        self,
        plan: Plan,
        stepper: Stepper,
        memory: MemoryMeter,
        device: torch.device,
        beat: Heartbeat,
    ) -> None:
        self._plan = plan
        self._stepper = stepper
        self._memory = memory
        self._marks = marks_for(device)
        self._heart = beat
        self._cycle = len(plan.cut.batches)
        self._done = 0
        self.warmup = Timed()
        self.timed = Timed()
        self.checks: list[CheckPoint] = []
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.window_s = 0.0
        self.steady = False
        self.status: RankStatus = "measured"
        self.peak_first = 0
        self.peak_timed = 0
        self.peak_worst = 0
        self.worst_is_bound = False
        self.alloc_retries = 0
        self.recompiled = 0
        self.throttled: dict[str, float] = {}
        self._clocks = watch_for(device)

    @property
    def unsteady(self) -> bool:
        """Whether warm-up did not settle, or mean and median of the window part."""
        return not self.steady or timing.is_unsteady(self.timed.slowest_s, self._cycle)

    @property
    def compile_s(self) -> float:
        """Seconds of warm-up beyond the steady time of the same batches."""
        return windows.compile_seconds(self.warmup.mine_s, self.timed.mine_s, self._cycle)

    def check(self, watch: contextlib.AbstractContextManager[None]) -> None:
        """Run the check iterations one by one and compare them with the baseline's.

        Args:
            watch: Is entered for the last of them, when the engine has learnt its order.

        Raises:
            NumericsError: A loss or a norm is wrong; on every rank alike.
        """
        self._heart.enter("check")
        for left in reversed(range(self._plan.measuring.check_iterations)):
            with contextlib.nullcontext() if left else watch:
                self._run(1, self.warmup)
            # Later iterations hold the optimizer's state from their beginning.
            self.peak_first = self.peak_first or self._memory.peak_bytes()
            self.checks.append(
                CheckPoint(loss=self.warmup.losses[-1], grad_norm=self.warmup.norms[-1])
            )
            problem = numerics.first_problem(self.checks, self._plan.numerics)
            if problem is not None:
                raise NumericsError(problem)

    def warm_up(self) -> None:
        """Run whole cycles until two agree or the limit is reached."""
        self._heart.enter("warmup")
        gc.collect()
        gc.freeze()
        gc.disable()
        self._meet()
        rest = -len(self.warmup.mine_s) % self._cycle
        if rest:
            self._run(rest, self.warmup)
        while True:
            state = windows.warm(self.warmup.slowest_s, self._cycle, self._plan.measuring)
            if state != "no":
                self.steady = state == "yes"
                return
            self._run(self._cycle, self.warmup)

    def measure(self) -> None:
        """Time whole cycles until the plan's rules end the window.

        A cycle in which a rank compiled is no part of it: it is counted and run again. One that
        compiles for ever is timed in the end, as unsteady, for that is what it costs.
        """
        self._heart.enter("measure")
        verdict: windows.Verdict = "go_on"
        retries = self._memory.alloc_retries()
        self._clocks.begin()
        self._meet()
        while verdict == "go_on":
            cycle = Timed()
            elapsed_s = self._run(self._cycle, cycle)
            if cycle.compiled:
                if self.recompiled < self._cycle * self._plan.measuring.warmup_max_cycles:
                    self.recompiled += self._cycle
                    continue
                self.steady = False
            self.timed.add(cycle)
            self.window_s += elapsed_s
            verdict = windows.window(self.timed.slowest_s, self._cycle, self._plan.measuring)
        self.throttled = self._clocks.end()
        self.alloc_retries = self._memory.alloc_retries() - retries
        self.status = "stopped_early" if verdict == "slower" else "measured"
        self.peak_timed = self._memory.peak_bytes()

    def probe(self) -> None:
        """Run the worst-case micro-step for its memory, where that can decide anything.

        It is left out where every rank ran it timed, after a trial that was stopped because it is
        too slow, and where even an upper bound is far from every rank's limit.
        """
        self._heart.enter("probe")
        gc.enable()
        if self._plan.cut.meets_worst_case or self.status == "stopped_early":
            self.peak_worst = self.peak_timed
            return
        bound = self._memory.at_most(self._plan.cut.worst_case_growth)
        if bound is not None:
            shares = self._stepper.exchange([bound / self._memory.limit_bytes])
            if float(shares.max()) <= FAR_FROM_LIMIT * (1.0 - self._plan.memory_margin_share):
                self.peak_worst, self.worst_is_bound = bound, True
                return
        self._memory.reset()
        self._stepper.probe(self._plan.cut.micro_steps)
        self.peak_worst = max(self.peak_timed, self._memory.peak_bytes())
        # No rank leaves while another still needs it for its own probe.
        self._stepper.exchange([float(self.peak_worst)])

    def _meet(self) -> None:
        """Wait for all ranks: none begins a cycle early and times its wait for the others."""
        self._stepper.exchange([0.0])

    def _run(self, count: int, into: Timed) -> float:
        """Run ``count`` iterations, then let the ranks exchange times, losses and norms.

        Returns:
            Seconds from the first mark to the last by the host's clock, the exchange not included.
        """
        graphs = compiling.graphs()
        start = time.perf_counter()
        self._marks.mark()
        results: list[Iteration] = []
        for index in range(self._done, self._done + count):
            results.append(self._stepper.iterate(index))
            self._marks.mark()
            self._heart.passed(index + 1)
        if self._heart.phase == "measure":
            self._clocks.look()  # all is issued, and the device still works on it
        seconds = self._marks.take()
        elapsed_s = time.perf_counter() - start
        losses = _numbers([result.loss for result in results])
        norms = _numbers([result.grad_norm for result in results])
        new_graphs = float(compiling.graphs() - graphs)
        self._done += count
        self._heart.beat(self._done)
        if not gc.isenabled():
            gc.collect(1)
        everyone = self._stepper.exchange([*seconds, *losses, *norms, new_graphs])
        times, mean_losses, all_norms, compiled = torch.split(
            everyone, [count, count, count, 1], dim=1
        )
        into.compiled = bool(compiled.any())
        into.mine_s += seconds
        into.slowest_s += times.max(dim=0).values.tolist()
        into.losses += mean_losses.mean(dim=0).tolist()
        into.norms += all_norms.max(dim=0).values.tolist()
        disagreement = numerics.rank_problem(all_norms.tolist(), self._done - count)
        if disagreement is not None:
            raise NumericsError(disagreement)
        self.losses += into.losses[-count:]
        self.norms += into.norms[-count:]
        if self._heart.phase != "check":
            _require_finite(into.losses[-count:], into.norms[-count:], self._done - count)
        return elapsed_s


def _numbers(values: Sequence[torch.Tensor | float]) -> list[float]:
    """Return scalars as floats, with one transfer for all that lie on the device."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if len(tensors) == len(values):
        return torch.stack([t.detach().float().reshape(()) for t in tensors]).double().tolist()
    return [float(value) for value in values]


def _require_finite(losses: Sequence[float], norms: Sequence[float], first: int) -> None:
    for offset, (loss, norm) in enumerate(zip(losses, norms, strict=True)):
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NumericsError(
                f"iteration {first + offset + 1} has loss {loss!r} and gradient norm {norm!r}"
            )
