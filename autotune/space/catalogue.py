"""The knobs that a space file may name, and what to say about a name that is none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from autotune import registry
from autotune.contract import command
from autotune.knobs import environment, kernels, reasons, workload
from autotune.knobs.knob import Knob
from autotune.space import reading
from autotune.space.place import Place


def backend_knobs(backend: str) -> tuple[Knob, ...]:
    """Return a registered backend's knob table; imports its adapter and no engine."""
    found = registry.load("backends", backend)
    instance = found() if isinstance(found, type) else found
    return tuple(instance.knobs)


class Catalogue:
    """Knobs of the chosen backends, workload, kernels and environment, by full and bare name.

    Args:
        backends: As the file names them.
        own: Settings that only the workload's command knows; ``None``: it is no command.
    """

    def __init__(self, backends: Iterable[str], own: Iterable[Knob] | None = None) -> None:
        self.backends: Final = tuple(backends)
        self.is_command: Final = own is not None
        self.knobs: Final[dict[str, Knob]] = {}
        for backend in self.backends:
            self._add(backend_knobs(backend))
        if own is None:
            self._add(workload.KNOBS)
            self._add(kernels.KNOBS)
        else:
            self._add(knob for knob in workload.KNOBS if knob.name in workload.OF_COMMANDS)
            self._add(own)
        self._add(environment.KNOBS)

    def _add(self, knobs: Iterable[Knob]) -> None:
        self.knobs.update({knob.full_name: knob for knob in knobs})

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that a file may use: bare ones first."""
        bare = [knob.name for knob in self.knobs.values()]
        return tuple(dict.fromkeys((*bare, *self.knobs)))

    def get(self, name: str) -> Knob | None:
        """Return the knob of a full or a unique bare name."""
        if name in self.knobs:
            return self.knobs[name]
        owner, _, bare = name.partition(".")
        if bare and owner in reasons.ALIASES and owner not in self.backends:
            return self.knobs.get(f"{reasons.ALIASES[owner]}.{bare}")
        matches = self._bare(name)
        return matches[0] if len(matches) == 1 else None

    def find(self, name: str, place: Place) -> Knob:
        """Return the knob of ``name``.

        Raises:
            SpaceError: There is none; says what was meant, or why it can be no knob.
        """
        knob = self.get(name) or self._of_other_backend(name)
        if knob is not None:
            return knob
        matches = self._bare(name)
        if matches:
            full = " or ".join(match.full_name for match in matches)
            raise place.error(f"{name} is a knob of several owners", hint=f"write {full}")
        raise self._unknown(name, place)

    def _bare(self, name: str) -> list[Knob]:
        return [knob for knob in self.knobs.values() if knob.name == name]

    def _of_other_backend(self, name: str) -> Knob | None:
        owner, _, bare = name.partition(".")
        if not bare or owner in self.backends or owner not in registry.names("backends"):
            return None
        return next((knob for knob in backend_knobs(owner) if knob.name == bare), None)

    def _unknown(self, name: str, place: Place) -> Exception:
        owner, _, bare = name.rpartition(".")
        if owner == environment.OWNER or bare in (*environment.FORBIDDEN, *environment.REFUSED):
            return self._environment(bare, place)
        if bare in workload.WORK and owner in ("", "workload"):
            return place.error(
                f"{name} is part of the work and no knob: another value would be other work, "
                "not the same work done faster",
                hint=f"set it at {workload.WORK[bare]}",
            )
        if self.is_command and owner in ("", "workload"):
            own_step = {knob.name for knob in workload.KNOBS}
            if bare in own_step:
                return place.error(
                    f"{bare} is a knob of autotune's own training step, and this workload is a "
                    "command",
                    hint=f"if your program has it, name it command.{bare}",
                )
        if owner == command.OWNER:
            return place.error(
                f"{reading.shown(name)} is a setting of a command, and workload has no command"
            )
        for known, refused in reasons.REFUSED.items():
            if bare in refused and owner in ("", known):
                return place.error(f"{name} cannot be set here: {refused[bare]}")
        others = self._others_with(bare) if not owner else []
        if others:
            return place.error(
                f"{name} is a knob of {', '.join(others)}, and this space's backend is "
                f"{', '.join(self.backends)}",
                hint=f"write {others[0]}.{name}, or change backend",
            )
        close = reading.nearest(name, self.names)
        live = [knob.name for knob in self.knobs.values() if not knob.always_dead]
        hint = f"did you mean {close}?" if close else f"known: {', '.join(dict.fromkeys(live))}"
        if self.is_command:
            hint += f"; a setting that only your program knows is written {command.OWNER}.NAME"
        return place.error(f"unknown knob {reading.shown(name)}", hint=hint)

    def _environment(self, name: str, place: Place) -> Exception:
        inherited = "set it in the environment that starts autotune; every rank inherits it"
        if name in environment.FORBIDDEN:
            return place.error(
                f"{name} is a setting of the site and is never changed nor tuned", hint=inherited
            )
        if name in environment.REFUSED:
            return place.error(f"env.{name} cannot be a knob: {environment.REFUSED[name]}")
        close = reading.nearest(name, [knob.name for knob in environment.KNOBS])
        known = ", ".join(f"env.{knob.name}" for knob in environment.KNOBS)
        return place.error(
            f"env.{name} is no knob (known: {known})",
            hint=f"did you mean env.{close}?" if close else inherited,
        )

    def _others_with(self, name: str) -> list[str]:
        # Only the shipped backends: a foreign one that does not load must not hide the message.
        shipped = [b for b in registry.BUILTIN["backends"] if b not in self.backends]
        return [b for b in shipped if any(knob.name == name for knob in backend_knobs(b))]
