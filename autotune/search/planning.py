"""The plan of one launch, and the rules of measuring that every plan of a study shares."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Final

from autotune.backends.base import Refusal, backend_of
from autotune.contract.plan import (
    Batching,
    CommandWorkload,
    Deadlines,
    Measuring,
    Numerics,
    Plan,
    Precision,
    Purpose,
    Racing,
    Reference,
    Schedule,
    Topology,
    Workload,
)
from autotune.data.schedule import make_schedule
from autotune.errors import InputError
from autotune.knobs import environment
from autotune.models.family import family_of
from autotune.models.kernels import table as kernels
from autotune.space.model import Config
from autotune.space.search_space import SearchSpace

CPU_MEASURING: Final = Measuring(
    warmup_tolerance=0.10,
    warmup_max_cycles=2,
    interval_share=0.05,
    window_s=4.0,
    window_iterations=24,
)
GPU_MEASURING: Final = Measuring(
    warmup_tolerance=0.02,
    warmup_max_cycles=4,
    interval_share=0.01,
    window_s=20.0,
    window_iterations=40,
)
STANDSTILL_S: Final[Mapping[str, float]] = {
    "launch": 60.0,
    "init": 120.0,
    "build": 600.0,
    "check": 600.0,
    "warmup": 600.0,
    "measure": 300.0,
    "probe": 600.0,
    "teardown": 30.0,
}
"""How long a rank may stand still in a phase, at most: longer is a hang.

Its heartbeat moves with every parameter made and every micro-step issued, so a large model or a
slow step passes. A compilation does not show, and 143 s were seen for one on a GPU (kernels of a
gated delta net): where the first steps of a shape lie, the limit is far above that. The timed
window repeats what warm-up ran."""
STANDSTILL_SHARE: Final[Mapping[str, float]] = {"measure": 0.4}
"""The same as a share of the trial's whole time, if that is less."""
DEFAULT_SHARE: Final = 0.8
"""For the other phases: a standstill is then told from a trial that is merely slow."""


def measuring(topology: Topology) -> Measuring:
    """Rules of warm-up and timing for the device (docs/explanation/measuring.md)."""
    return GPU_MEASURING if topology.device == "cuda" else CPU_MEASURING


def numerics(precision: Precision | None, reference: Reference) -> Numerics:
    """Tolerances by precision (docs/explanation/equal-work.md).

    Before any update the backends agree to 3e-7 in float32 and, with rounded weights and float32
    reduction, to 1e-5 in bf16; other cuts of the batch move bf16's rounding by up to 5e-3 in the
    norm, and the order in which a kernel sums float32 squares moved a norm by 5e-6. Wrong
    gradient scaling is off by whole factors. A command that states no precision may use bf16.
    """
    if precision is None or "bf16" in dataclasses.astuple(precision):
        return Numerics(
            reference=reference.checks,
            implementations=reference.implementations,
            losses=reference.losses,
            grad_norms=reference.grad_norms,
            first_loss_tolerance=2e-3,
            first_norm_tolerance=1e-2,
            loss_tolerance=1e-2,
            norm_tolerance=5e-2,
        )
    return Numerics(
        reference=reference.checks,
        implementations=reference.implementations,
        losses=reference.losses,
        grad_norms=reference.grad_norms,
        first_loss_tolerance=1e-5,
        first_norm_tolerance=5e-5,
        loss_tolerance=1e-4,
        norm_tolerance=1e-3,
    )


def deadlines(max_trial_time_s: float) -> Deadlines:
    """Limits of one trial, of which all but the first are on standing still."""
    shares = {name: STANDSTILL_SHARE.get(name, DEFAULT_SHARE) for name in STANDSTILL_S}
    return Deadlines(
        total_s=max_trial_time_s,
        phase_s={
            name: min(limit, shares[name] * max_trial_time_s)
            for name, limit in STANDSTILL_S.items()
        },
    )


def _contradicting_variables(config: Config) -> Refusal | None:
    found = environment.contradiction(config.values)
    return None if found is None else Refusal(about=found[0], reason=found[1])


@dataclasses.dataclass(kw_only=True)
class Planner:
    """Makes the plans of one study. Schedules are kept: many configurations share a cut."""

    study: str
    space: SearchSpace
    """Bound to ``topology``."""
    workload: CommandWorkload | Workload
    topology: Topology
    _schedules: dict[tuple[Any, ...], Schedule | str] = dataclasses.field(default_factory=dict)

    def plan(
        self,
        config: Config,
        *,
        number: int,
        attempt: int,
        purpose: Purpose,
        reference: Reference,
        racing: Racing | None,
        whole_window: bool = False,
    ) -> Plan:
        """Return the plan of one launch of ``config``.

        A launch that is compared with others fills its window (``whole_window``): that its own
        cycles agree says nothing of the next launch, and windows that end while times happen to
        agree are the ones without slow iterations.

        Raises:
            InputError: The batches cannot be cut this way; :meth:`refusal` says so before.
        """
        schedule = self._schedule(config)
        if isinstance(schedule, str):
            raise InputError(schedule)
        rules = measuring(self.topology)
        if whole_window:
            rules = dataclasses.replace(rules, interval_share=0.0)
        variables, unset = environment.variables(config.values)
        return Plan(
            study=self.study,
            number=number,
            attempt=attempt,
            purpose=purpose,
            key=config.key,
            backend=config.backend,
            config=dict(config.values),
            verify=self.verified(config),
            dead=config.dead,
            unverified=dict(self.space.unverified),
            workload=self.workload,
            schedule=schedule,
            topology=self.topology,
            measuring=dataclasses.replace(rules, racing=racing),
            numerics=numerics(self.workload.precision, self._comparable(config, reference)),
            deadlines=self._deadlines(),
            memory_margin_share=self.space.search.memory_margin_share,
            environment=variables,
            unset=unset,
        )

    def _comparable(self, config: Config, reference: Reference) -> Reference:
        """The baseline's kernels of the layer types for which ``config`` asks for the same.

        Where it asks for others, they are read back as the knobs that they are.
        """
        baseline = self.space.baseline_config().values
        other = kernels.kinds_of(config.values, baseline)
        bound = reference.implementations
        kept = {kind: path for kind, path in bound.items() if kind not in other}
        return dataclasses.replace(reference, implementations=kept)

    def _deadlines(self) -> Deadlines:
        made = deadlines(self.space.search.max_trial_time_s)
        if not isinstance(self.workload, CommandWorkload):
            return made
        # What a command does before its first step cannot be seen: only the whole limits it.
        kept = {name: limit for name, limit in made.phase_s.items() if name != "build"}
        return dataclasses.replace(made, phase_s=kept)

    @functools.cached_property
    def baseline_params(self) -> dict[str, Any]:
        """The tuned parameters as the baseline has them."""
        return self.space.params_of(self.space.baseline_config())

    def refusal(self, config: Config) -> Refusal | None:
        """Why ``config`` is known not to run here, without a launch; ``None`` if it may."""
        if isinstance(self.workload, CommandWorkload):
            return None  # what its program refuses, only its program knows
        schedule = self._schedule(config)
        if isinstance(schedule, str):
            return Refusal(about="workload.global_batch", reason=schedule)
        assert schedule is not None
        return (
            self._too_long(schedule)
            or _contradicting_variables(config)
            or self._mixed(config)
            or backend_of(config.backend).validate(config.values, self.workload, self.topology)
        )

    def _mixed(self, config: Config) -> Refusal | None:
        """Packed samples that would see each other through one of the chosen kernels."""
        assert isinstance(self.workload, Workload)
        if config.values["workload.batching"] != "packed":
            return None
        model = self.workload.model
        chosen = kernels.chosen(config.values)
        reason = family_of(model.family).packing_refusal(model.config, chosen)
        return None if reason is None else Refusal(about="workload.batching", reason=reason)

    def _too_long(self, schedule: Schedule) -> Refusal | None:
        """A row of the cut that is longer than the positions that the model was made for."""
        assert isinstance(self.workload, Workload)
        length = schedule.worst_case.length
        positions = self.workload.model.config.get("max_position_embeddings")
        if positions is None or length <= positions:
            return None
        packed = schedule.batching == "packed"
        return Refusal(
            about="workload.max_tokens" if packed else "workload.data.max_length",
            reason=f"rows of {length:,} tokens are longer than the model's {positions:,} positions",
        )

    def micro_steps(self, values: Mapping[str, Any]) -> int | None:
        """How many micro-steps an iteration has; ``None`` where the values do not say.

        Args:
            values: Of the workload's knobs, by full name.
        """
        if not isinstance(self.workload, CommandWorkload):
            schedule = self._cut(values)
            return schedule.micro_steps if isinstance(schedule, Schedule) else None
        rows = values.get("workload.micro_batch")
        if rows is None:
            return None
        return self.workload.global_batch // (int(rows) * self.topology.processes)

    def _schedule(self, config: Config) -> Schedule | str | None:
        """The cut of the batches, or why there is none; ``None`` for a command."""
        return None if isinstance(self.workload, CommandWorkload) else self._cut(config.values)

    def _cut(self, values: Mapping[str, Any]) -> Schedule | str:
        assert isinstance(self.workload, Workload)
        batching: Batching = values["workload.batching"]
        cut = (batching, values["workload.micro_batch"], values["workload.max_tokens"])
        if cut not in self._schedules:
            try:
                self._schedules[cut] = make_schedule(
                    self.workload.samples,
                    global_batch=self.workload.global_batch,
                    distinct_batches=self.workload.distinct_batches,
                    batching=batching,
                    micro_batch=cut[1],
                    max_tokens=cut[2],
                    processes=self.topology.processes,
                )
            except (ValueError, InputError) as error:
                self._schedules[cut] = str(error)
        return self._schedules[cut]

    def verified(self, config: Config) -> tuple[str, ...]:
        """All that the user tunes or sets and that is live in ``config``."""
        named = {param.knob for param in self.space.params}
        named |= set(self.space.fixed) | set(self.space.baseline)
        return tuple(name for name in config.values if name in named and name not in config.dead)
