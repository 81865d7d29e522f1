"""The knobs of a space file, and what only the whole file can tell."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final

from autotune.knobs import environment
from autotune.knobs.knob import Knob
from autotune.space import commands, conditions, keys, reading, sections
from autotune.space.canonical import facts, label, siblings
from autotune.space.catalogue import Catalogue
from autotune.space.expression import Expression
from autotune.space.model import (
    AUTO,
    Choices,
    CommandSpec,
    Constraint,
    Dropped,
    Param,
    WorkloadSpec,
)
from autotune.space.nodes import Entry, Node, Table
from autotune.space.params import read_domain
from autotune.space.place import Place
from autotune.space.search_space import CUTS, SearchSpace
from autotune.space.settings import read_search
from autotune.space.unverified import read_unverified


def assemble(
    root: Table,
    catalogue: Catalogue,
    *,
    file: str,
    text: str,
    overrides: tuple[str, ...],
    base: Path,
) -> SearchSpace:
    """Return the space of a checked tree.

    Raises:
        SpaceError: A knob, a condition or a constraint is wrong, or two sections contradict.
    """
    reader = _Reader(root, catalogue)
    workload: CommandSpec | WorkloadSpec
    if catalogue.is_command:
        workload = commands.read_command(root, catalogue)
    else:
        workload = sections.workload(root, catalogue, base)
    processes = sections.processes(root, catalogue)
    settings = read_search(root, catalogue)
    reader.read_values()
    reader.read_params(settings.allow, facts(workload))
    reader.check_sections()
    knobs = catalogue.knobs
    if isinstance(workload, CommandSpec):
        commands.check_reached(
            workload,
            catalogue,
            params=reader.params,
            stated={**reader.baseline, **reader.fixed},
            values=tuple(reader.places_of_knobs()),
        )
        live = commands.reached(workload, catalogue)
        knobs = {full: knob for full, knob in knobs.items() if full in live}
    named = set(dict(reader.places_of_knobs()))
    knobs = {
        full: knob
        for full, knob in knobs.items()
        if knob.owner != environment.OWNER or full in named
    }
    space = SearchSpace(
        file=file,
        text=text,
        overrides=overrides,
        backends=catalogue.backends,
        declared_backends=catalogue.backends,
        workload=workload,
        processes=processes,
        params=tuple(reader.params),
        declared=tuple(reader.params),
        fixed=reader.fixed,
        baseline=reader.baseline,
        baseline_backend=reader.baseline_backend,
        constraints=(),
        unverified=read_unverified(root, catalogue),
        search=settings,
        dropped=tuple(reader.dropped),
        knobs=knobs,
        places=reader.places,
    )
    return dataclasses.replace(space, constraints=_constraints(root, catalogue, space))


class _Reader:
    """Reads ``fixed``, ``baseline``, the knobs of ``workload``, and ``params``."""

    def __init__(self, root: Table, catalogue: Catalogue) -> None:
        self.root: Final = root
        self.catalogue: Final = catalogue
        self.fixed: dict[str, Any] = {}
        self.baseline: dict[str, Any] = {}
        self.stated: dict[str, Any] = {}
        self.baseline_backend = catalogue.backends[0]
        self.params: list[Param] = []
        self.dropped: list[Dropped] = []
        self.places: dict[str, Place] = {}
        self._note_places()

    def _note_places(self) -> None:
        """Note where each value of the sections that hold no knobs stands, and each section."""

        def note(path: str, node: Node) -> None:
            self.places[path] = node.place
            if isinstance(node, Table) and path.partition(".")[0] not in sections.KNOB_SECTIONS:
                for key, entry in node.entries.items():
                    note(f"{path}.{key}", entry.value)

        for key, entry in self.root.entries.items():
            note(key, entry.value)

    def read_values(self) -> None:
        """Read all sections that give knobs a value."""
        self._values("fixed", self.fixed)
        baseline = reading.table(self.root.get("baseline"), "baseline")
        if baseline is not None and "backend" in baseline.entries:
            node = baseline.entries["backend"].value
            self.baseline_backend = reading.text(node, "baseline.backend", self.catalogue.backends)
        self._values("baseline", self.baseline)
        workload = reading.table(self.root.get("workload"), "workload")
        for entry in keys.entries(workload):
            if entry.key in sections.WORKLOAD_KNOBS:
                self._stated(entry)

    def _stated(self, entry: Entry) -> None:
        """A knob under ``workload:`` is what the user runs today, unless it is tuned."""
        knob = self.catalogue.find(f"workload.{entry.key}", entry.place)
        value = reading.knob_value(entry.value, knob)
        self.stated[knob.full_name] = value
        for section, given in (("fixed", self.fixed), ("baseline", self.baseline)):
            if knob.full_name in given and given[knob.full_name] != value:
                raise self._contradiction(entry, value, section, given[knob.full_name])
        if knob.full_name not in self.fixed:
            self.baseline[knob.full_name] = value
            self.places.setdefault(f"baseline.{knob.full_name}", entry.value.place)

    def _contradiction(self, entry: Entry, value: Any, section: str, other: Any) -> Exception:
        return entry.place.error(
            f"{entry.key} is {label(value)} here and {label(other)} under {section}",
            hint="keep one of them",
        )

    def _values(self, section: str, into: dict[str, Any]) -> None:
        for entry, knob in self._knobs(section, skip=("backend",) if section == "baseline" else ()):
            value = reading.stated_value(entry.value, knob)
            if self._is_foreign(knob):
                self._drop(entry.key, value, knob)
                continue
            into[knob.full_name] = value
            self.places[f"{section}.{knob.full_name}"] = entry.value.place

    def _knobs(self, section: str, skip: Iterable[str] = ()) -> list[tuple[Entry, Knob]]:
        """The entries of a section with their knobs; the same knob twice is an error."""
        table = reading.table(self.root.get(section), section)
        first: dict[str, Entry] = {}
        found: list[tuple[Entry, Knob]] = []
        for entry in keys.entries(table):
            if entry.key in skip:
                continue
            knob = self._find(entry, section)
            if knob.full_name in first:
                before = first[knob.full_name]
                raise entry.place.error(
                    f"{entry.key} and {before.key} ({before.place.words}) are the same knob",
                    hint="keep one of them",
                )
            first[knob.full_name] = entry
            found.append((entry, knob))
        return found

    def _find(self, entry: Entry, section: str) -> Knob:
        key = entry.key
        home = next(
            (path for path, names in keys.KEYS.items() if key in names and path != "workload"),
            None,
        )
        if home is not None and self.catalogue.get(key) is None and not _is_work(home):
            where = f"under {home}" if home else "at the top level"
            raise entry.place.error(
                f"{key} is no knob and does not belong under {section}",
                hint=f"{key} belongs {where}",
            )
        return self.catalogue.find(key, entry.place)

    def _is_foreign(self, knob: Knob) -> bool:
        return knob.full_name not in self.catalogue.knobs

    def _drop(self, name: str, value: Any, knob: Knob) -> None:
        backends = ", ".join(self.catalogue.backends)
        reason = f"it is a knob of {knob.owner}, and the backend is {backends}"
        self.dropped.append(Dropped(param=name, value=value, reason=reason))

    def read_params(self, allow: tuple[str, ...], known: Mapping[str, Any]) -> None:
        """Read ``params:``, in order; ``known`` is what conditions may name beside knobs."""
        section = sections.required(self.root, "params")
        found = self._knobs("params")
        if not found and len(self.catalogue.backends) == 1:
            raise section.place.error(
                "params is empty: there is nothing to tune",
                hint="tune for example micro_batch: {choices: [1, 2, 4]}",
            )
        names = [knob.full_name for _, knob in found]
        constant = set(self.fixed) | (set(self.stated) - set(names))
        for index, (entry, knob) in enumerate(found):
            self._check_effect(entry, knob, allow)
            domain = read_domain(entry.value, knob, entry.key)
            when = self._when(entry, knob, constant | set(names[:index]), set(names[index:]))
            self.places[f"params.{entry.key}"] = entry.place
            if self._is_foreign(knob):
                self._drop(entry.key, None, knob)
            elif when is not None and conditions.never_true(when, self._possible()):
                reason = f"its condition {when.text} is never true"
                self.dropped.append(Dropped(param=entry.key, value=None, reason=reason))
            elif knob.always_dead:
                reason = f"it changes nothing under {knob.owner}: {knob.meaning}"
                self.dropped.append(Dropped(param=entry.key, value=None, reason=reason))
            elif self._dead(knob, set(names), known):
                reason = f"it changes nothing in any configuration here: {knob.dead_when}"
                self.dropped.append(Dropped(param=entry.key, value=None, reason=reason))
            else:
                self.params.append(
                    Param(
                        name=entry.key,
                        knob=knob.full_name,
                        owner=knob.owner,
                        domain=domain,
                        when=when,
                    )
                )
        if not self.params and len(self.catalogue.backends) == 1:
            gone = "; ".join(f"{item.param}: {item.reason}" for item in self.dropped)
            raise section.place.error(f"no parameter is left to tune ({gone})")

    def _check_effect(self, entry: Entry, knob: Knob, allow: tuple[str, ...]) -> None:
        if knob.numerics == "work":
            raise entry.place.error(
                f"{entry.key} changes the work and cannot be tuned", hint="put it under fixed"
            )
        if knob.numerics == "rounding" and knob.full_name not in allow:
            raise entry.place.error(
                f"{entry.key} changes rounding and is tuned only with permission",
                hint=f"write search: {{allow: [{entry.key}]}}",
            )

    def _when(self, entry: Entry, knob: Knob, known: set[str], later: set[str]) -> Any:
        node = entry.value.get("when") if isinstance(entry.value, Table) else None
        if node is None:
            return None
        expression, source = conditions.read(node, f"when of {entry.key}", self.catalogue)
        conditions.check_before(expression, source, knob.full_name, known, later)
        return expression

    def _dead(self, knob: Knob, tuned: Set[str], known: Mapping[str, Any]) -> bool:
        """Whether ``knob`` changes nothing, whatever the sampler chooses."""
        if knob.dead_when is None:
            return False
        untuned = {
            name: (other.default,)
            for name, other in self.catalogue.knobs.items()
            if name not in tuned and other.default is not None
        }
        stated = {
            name: (value,)
            for name, value in {**self.baseline, **self.fixed}.items()
            if name not in tuned and value != AUTO
        }
        possible = {**untuned, **stated, **self._possible()}
        facts = {name: (value,) for name, value in known.items()}
        return conditions.always_true(
            Expression.parse(knob.dead_when), {**facts, **possible, **siblings(knob, possible)}
        )

    def _possible(self) -> dict[str, Sequence[Any]]:
        """Full name to all its values, for what is fixed and for unconditional lists so far."""
        lists = {
            param.knob: param.domain.values
            for param in self.params
            if isinstance(param.domain, Choices) and param.when is None
        }
        stated = {**self.stated, **self.fixed}
        constant = {name: (value,) for name, value in stated.items() if value != AUTO}
        return {**constant, **lists, conditions.BACKEND: self.catalogue.backends}

    def places_of_knobs(self) -> Iterator[tuple[str, Place]]:
        """Yield the full name of each knob that is tuned, fixed or in the baseline."""
        for param in self.params:
            yield param.knob, self.places[f"params.{param.name}"]
        for section, given in (("fixed", self.fixed), ("baseline", self.baseline)):
            for name in given:
                yield name, self.places[f"{section}.{name}"]

    def check_sections(self) -> None:
        """Refuse what contradicts itself across sections."""
        for param in self.params:
            if param.knob in self.fixed:
                place = self.places[f"params.{param.name}"]
                raise place.error(
                    f"{param.name} is both tuned and fixed "
                    f"({self.places[f'fixed.{param.knob}'].words})",
                    hint=f"keep one of them; --set params.{param.name}=null removes this one",
                )
        for name, value in self.baseline.items():
            if name in self.fixed and not _equal(self.fixed[name], value):
                raise self.places[f"baseline.{name}"].error(
                    f"{name.rpartition('.')[2]} is fixed to {label(self.fixed[name])}, and the "
                    f"baseline says {label(value)}",
                    hint="every configuration has what is fixed: keep one of them",
                )
        self._check_cuts()

    def _check_cuts(self) -> None:
        """The cut of a batch is either by rows or by tokens."""
        fixed = [name for name in CUTS if self.fixed.get(name) is not None]
        baseline = [name for name in CUTS if self.baseline.get(name) is not None]
        tuned = {param.knob: param.name for param in self.params if param.knob in CUTS}
        groups = (
            ("params", [tuned[name] for name in CUTS if name in tuned]),
            ("fixed", fixed),
            ("baseline", baseline),
        )
        for section, names in groups:
            if len(names) == len(CUTS):
                raise self.places[f"{section}.{names[-1]}"].error(
                    _BOTH_CUTS, hint="keep one of them"
                )
        for name in fixed:
            for section, names in groups:
                for other in names:
                    if section != "fixed" and tuned.get(name, name) != other:
                        raise self.places[f"{section}.{other}"].error(
                            _BOTH_CUTS, hint=f"{name.rpartition('.')[2]} is fixed: keep one of them"
                        )


_BOTH_CUTS: Final = "a batch is cut either by micro_batch (rows) or by max_tokens, never by both"


def _is_work(path: str) -> bool:
    return path.startswith("workload")


def _equal(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


def _constraints(root: Table, catalogue: Catalogue, space: SearchSpace) -> tuple[Constraint, ...]:
    found: list[Constraint] = []
    tuned = {param.knob for param in space.params} | {conditions.BACKEND}
    for node in reading.sequence(root.get("constraints"), "constraints"):
        expression, source = conditions.read(node, "constraint", catalogue)
        space.places[f"constraint {expression.text}"] = source.place
        constraint = Constraint(text=expression.text, expression=expression)
        known = all(space.fixed.get(name) != AUTO for name in expression.names)
        if known and not tuned & set(expression.names):
            trial = dataclasses.replace(space, constraints=(constraint,))
            if all(trial.violated(trial.default_config(b)) for b in space.backends):
                raise source.place.error(
                    f"the constraint {reading.shown(expression.text)} can never hold: "
                    "it names nothing that is tuned"
                )
        found.append(constraint)
    return tuple(found)
