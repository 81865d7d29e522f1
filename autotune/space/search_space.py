"""The search space: which parameters are active, what a configuration is, what lies inside."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.contract import command
from autotune.contract.plan import Topology
from autotune.errors import InputError
from autotune.knobs import environment, kernels
from autotune.knobs.knob import Knob
from autotune.space import binding, canonical, domains, meaning
from autotune.space.model import (
    AUTO,
    CommandSpec,
    Config,
    Constraint,
    Dropped,
    Limits,
    Param,
    SearchSettings,
    WorkloadSpec,
)
from autotune.space.place import Place

CUTS = ("workload.micro_batch", "workload.max_tokens")
"""The two ways to cut a global batch; a configuration has exactly one."""

SHARED_OWNERS = ("workload", kernels.OWNER, environment.OWNER, command.OWNER)
"""Owners whose knobs are live whatever the backend."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """A space file, checked. :meth:`on` binds it to a topology; then it resolves assignments.

    An *assignment* maps the name of every active parameter to a value of its domain, and
    ``backend`` to a name when the space has several.
    """

    file: str
    """The file as the user named it."""
    text: str
    """Its text; with ``overrides`` it rebuilds this space."""
    overrides: tuple[str, ...]
    """``KEY=VALUE`` of each ``--set``, in order."""
    backends: tuple[str, ...]
    """Tuned here: ``declared_backends`` without what was dropped."""
    declared_backends: tuple[str, ...]
    """Named by the file, whatever the machine."""
    workload: CommandSpec | WorkloadSpec
    processes: int | None
    """``None``: all visible devices, two processes without one."""
    params: tuple[Param, ...]
    """Tuned here: ``declared`` without what was dropped."""
    declared: tuple[Param, ...]
    """Tuned by the file, whatever the topology."""
    fixed: dict[str, Any]
    """Full knob name to value, in every configuration including the baseline."""
    baseline: dict[str, Any]
    """Full knob name to value: what the user runs today. Kept where a knob is not tuned."""
    baseline_backend: str
    constraints: tuple[Constraint, ...]
    unverified: dict[str, dict[str, Any]]
    """Engine name to keys that are passed through and never read back."""
    search: SearchSettings
    dropped: tuple[Dropped, ...]
    """Parameters and choices of the file that cannot hold, with the reason."""
    knobs: dict[str, Knob]
    """Every knob that a configuration may hold, by full name."""
    resolved: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Full name to value of what ``fixed`` or ``baseline`` leave to ``auto``, once it is known."""
    topology: Topology | None = None
    limits: Limits = dataclasses.field(default_factory=Limits)
    """What the workload's model and the machine allow, once bound."""
    places: dict[str, Place] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    """Where the file says what: ``params.NAME``, ``fixed.FULL``, ``workload.global_batch``,
    ``constraint TEXT``, …; :meth:`place` reads it."""

    @property
    def is_command(self) -> bool:
        """Whether a program of the user's own does the work."""
        return isinstance(self.workload, CommandSpec)

    @property
    def training(self) -> WorkloadSpec:
        """The workload of a space whose trials run autotune's own step."""
        assert isinstance(self.workload, WorkloadSpec), "a command has no model and no data"
        return self.workload

    @functools.cached_property
    def fingerprint(self) -> str:
        """Digest of the meaning: not of comments, order, settings of the search, or topology."""
        return meaning.fingerprint(self)

    def differences(self, other: SearchSpace) -> tuple[str, ...]:
        """Say in words what changes from this space to ``other``; empty when nothing does."""
        return meaning.differences(self, other)

    def place(self, path: str) -> Place:
        """Where ``path`` stands in the file, or the section that would hold it."""
        while path not in self.places and "." in path:
            path = path.rpartition(".")[0]
        return self.places.get(path, Place(file=self.file))

    def place_of_value(self, knob: str) -> Place:
        """Where the baseline gets the value of a knob, by full name, from."""
        stated = (f"{section}.{knob}" for section in ("fixed", "baseline"))
        return self.place(next((path for path in stated if path in self.places), "baseline"))

    def on(self, topology: Topology, limits: Limits | None = None) -> SearchSpace:
        """Return this space on a topology, without the choices that cannot hold there.

        Args:
            topology: Where the ranks run.
            limits: What the model and the machine allow; nothing is known of them without.

        Raises:
            SpaceError: No choice of a parameter is left, or what is fixed, the baseline or the
                global batch is impossible.
        """
        return binding.bind(self, topology, limits or Limits())

    def without(self, backend: str, reason: str) -> SearchSpace:
        """Return this space without a backend that cannot run here, and say why.

        ``backend`` must be neither the baseline's nor the only one.
        """
        assert backend in self.backends
        assert backend != self.baseline_backend
        gone = Dropped(param="backend", value=backend, reason=reason, topology=self.topology)
        return dataclasses.replace(
            self,
            backends=tuple(name for name in self.backends if name != backend),
            params=tuple(param for param in self.params if param.owner != backend),
            dropped=(*self.dropped, gone),
        )

    def without_values(self, knob: str, reasons: Mapping[Any, str]) -> SearchSpace:
        """Return this space without values of a tuned knob that cannot hold here, and say why.

        Raises:
            SpaceError: None would be left.
        """
        return binding.drop_values(self, knob, reasons)

    def without_param(self, knob: str, reason: str) -> SearchSpace:
        """Return this space with a knob, by full name, tuned no more, and say why."""
        gone = [param for param in self.params if param.knob == knob]
        lost = [
            Dropped(param=param.name, value=None, reason=reason, topology=self.topology)
            for param in gone
        ]
        return dataclasses.replace(
            self,
            params=tuple(param for param in self.params if param.knob != knob),
            dropped=(*self.dropped, *lost),
        )

    def with_baseline(self, values: Mapping[str, Any]) -> SearchSpace:
        """Return this space with more values, by full knob name, in its baseline."""
        return dataclasses.replace(self, baseline={**values, **self.baseline})

    @property
    def unresolved(self) -> tuple[str, ...]:
        """Full names of knobs that are still ``auto``."""
        stated = {**self.baseline, **self.fixed}
        return tuple(name for name, value in stated.items() if value == AUTO)

    def with_auto(self, values: Mapping[str, Any]) -> SearchSpace:
        """Return this space with ``values`` (full name to value) for all that is ``auto``."""
        resolved = {name: values[name] for name in self.unresolved}
        return dataclasses.replace(
            self,
            fixed={name: resolved.get(name, value) for name, value in self.fixed.items()},
            baseline={name: resolved.get(name, value) for name, value in self.baseline.items()},
            resolved=resolved,
        )

    def active(self, assignment: Mapping[str, Any]) -> tuple[Param, ...]:
        """Return the parameters that matter under a (possibly partial) assignment.

        Walk ``params`` in order and assign each that this returns: conditions look backwards
        only, so what is active among the first n depends on those alone.
        """
        return tuple(self._walk(assignment))

    def resolve(self, assignment: Mapping[str, Any]) -> Config:
        """Return the configuration of an assignment.

        Raises:
            InputError: The assignment lacks an active parameter.
        """
        backend = self._backend(assignment)
        values = self._kept(backend)
        tuned: dict[str, Any] = {}
        for param in self._walk(assignment):
            if param.name not in assignment:
                raise InputError(f"the assignment has no value for {param.name}")
            tuned[param.knob] = assignment[param.name]
        return self._config(backend, {**values, **tuned}, prefer=tuned)

    def baseline_config(self) -> Config:
        """Return what the user runs today; it may lie outside the space."""
        return self._config(self.baseline_backend, self._kept(self.baseline_backend), prefer={})

    def default_config(self, backend: str) -> Config:
        """Return the engine's raw defaults for its tuned knobs, the rest as in the baseline."""
        values = self._kept(backend)
        for param in self.params:
            if param.owner == backend and param.knob not in self.fixed:
                values[param.knob] = self.knobs[param.knob].default
        return self._config(backend, values, prefer={})

    def config_of(self, backend: str, values: Mapping[str, Any]) -> Config:
        """Return the configuration of an engine that is told ``values`` and nothing else.

        It may lie outside the space. What is not told has the engine's own default; knobs of the
        workload stay as in the baseline.

        Args:
            backend: One of ``backends``.
            values: Full knob name to value.
        """
        kept = self._kept(backend)
        untold = {name: self.knobs[name].default for name in kept if self._owner(name) == backend}
        return self._config(backend, {**kept, **untold, **values}, prefer=values)

    def _owner(self, name: str) -> str:
        return self.knobs[name].owner

    def contains(self, assignment: Mapping[str, Any]) -> bool:
        """Whether the assignment names exactly the active parameters, each in its domain."""
        if len(self.backends) > 1 and assignment.get("backend") not in self.backends:
            return False
        expected = {"backend"} if len(self.backends) > 1 else set()
        for param in self._walk(assignment):
            expected.add(param.name)
            if param.name not in assignment:
                return False
            if not domains.contains(param.domain, assignment[param.name]):
                return False
        return expected == set(assignment)

    def assignment_of(self, config: Config) -> dict[str, Any] | None:
        """Return the assignment that resolves to ``config``, ``None`` if it lies outside."""
        if config.backend not in self.backends:
            return None
        assignment = self.params_of(config)
        if not self.contains(assignment):
            return None
        return assignment if self.resolve(assignment).key == self._rekeyed(config) else None

    def params_of(self, config: Config) -> dict[str, Any]:
        """Return the values of the parameters that are active in ``config``, by name."""
        found: dict[str, Any] = {"backend": config.backend} if len(self.backends) > 1 else {}
        for param in self.params:
            if param.owner in (config.backend, *SHARED_OWNERS) and param.knob in config.values:
                found[param.name] = config.values[param.knob]
        names = {param.name for param in self.active(found)} | {"backend"}
        return {name: value for name, value in found.items() if name in names}

    def project(self, backend: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the nearest legal assignment: clipped into ranges, the nearest of choices.

        Args:
            backend: One of ``backends``.
            values: Full knob name to wished value; other parameters start from their default.
        """
        assignment: dict[str, Any] = {"backend": backend} if len(self.backends) > 1 else {}
        for param in self.params:
            if param in self.active(assignment):
                wished = values.get(param.knob, self.knobs[param.knob].default)
                assignment[param.name] = domains.nearest(param.domain, wished)
        return assignment

    def violated(self, config: Config) -> Constraint | None:
        """Return the first constraint that ``config`` breaks."""
        values = {**config.values, "backend": config.backend}
        for constraint in self.constraints:
            if constraint.expression.value(values) is False:
                return constraint
        return None

    def _backend(self, assignment: Mapping[str, Any]) -> str:
        if len(self.backends) == 1:
            return self.backends[0]
        backend = assignment.get("backend")
        if backend not in self.backends:
            raise InputError(f"the assignment names no backend of {', '.join(self.backends)}")
        return str(backend)

    def _kept(self, backend: str) -> dict[str, Any]:
        """Values of all knobs where nothing is tuned: default, then baseline, then fixed."""
        owners = (backend, *SHARED_OWNERS)
        values = {
            name: knob.default
            for name, knob in self.knobs.items()
            if knob.owner in owners and not knob.always_dead
        }
        for source in (self.baseline, self.fixed):
            values |= {n: v for n, v in source.items() if self.knobs[n].owner in owners}
        return values

    def _walk(self, assignment: Mapping[str, Any]) -> Iterator[Param]:
        """Yield the active parameters in order."""
        if len(self.backends) > 1 and assignment.get("backend") not in self.backends:
            return
        backend = self._backend(assignment)
        values: dict[str, Any] = {**self._kept(backend), "backend": backend}
        for param in self.params:
            if param.owner not in (backend, *SHARED_OWNERS):
                continue
            if param.when is not None and not param.when.evaluate(values):
                continue
            # Without its key, a name is unknown: what depends on it is not active yet.
            values.pop(param.knob, None)
            if param.name in assignment:
                values[param.knob] = assignment[param.name]
            yield param

    def _config(self, backend: str, values: dict[str, Any], *, prefer: Mapping[str, Any]) -> Config:
        values = {**values, **self._cut(prefer)}
        facts = {**canonical.facts(self.workload), **self.limits.facts}
        if self.topology is not None:
            facts |= {"processes": self.topology.processes, "device": self.topology.device}
        values = canonical.with_defaults(values, self.knobs.values(), facts)
        facts |= self._micro_steps(values)
        dead = canonical.dead_knobs(values, self.knobs.values(), facts)
        traceless = canonical.at_later_defaults(values, self.knobs.values(), facts)
        key = canonical.config_key(backend, values, (*dead, *traceless))
        return Config(backend=backend, values=dict(sorted(values.items())), dead=dead, key=key)

    def _micro_steps(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """An iteration's micro-steps as a fact for conditions, where rows say how many."""
        rows = values.get("workload.micro_batch")
        if self.topology is None or rows is None:
            return {}
        return {"micro_steps": self.workload.global_batch // (rows * self.topology.processes)}

    def _cut(self, tuned: Mapping[str, Any]) -> dict[str, Any]:
        """Return the cut knobs, exactly one of them with a value: the more deliberate one."""
        cuts = [name for name in CUTS if name in self.knobs]
        for source in (tuned, self.fixed, self.baseline):
            for name in cuts:
                if source.get(name) is not None:
                    return {cut: source[name] if cut == name else None for cut in cuts}
        return {name: self.knobs[name].default for name in cuts}

    def _rekeyed(self, config: Config) -> str:
        """The key that ``config``'s values have here: dead knobs depend on the topology."""
        known = {n: v for n, v in config.values.items() if n in self.knobs}
        if len(known) < len(config.values):
            return ""
        # A knob that the record does not know had its default: there was nothing else then.
        unknown = [name for name in self._kept(config.backend) if name not in known]
        known |= {name: self.knobs[name].default for name in unknown}
        return self._config(config.backend, known, prefer=known).key
