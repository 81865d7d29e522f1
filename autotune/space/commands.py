"""``workload: {command: [...]}``: a program of the user's own does the work of each trial.

What is tuned reaches it through placeholders of its arguments; what would not is an error.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from autotune import registry
from autotune.contract.command import (
    OWNER,
    PARAM,
    PROCESSES,
    TRIAL_DIR,
    placeholders,
    renamed,
)
from autotune.knobs import environment
from autotune.knobs.knob import Knob, KnobType
from autotune.space import keys, reading, sections
from autotune.space.catalogue import Catalogue
from autotune.space.model import AUTO, CommandSpec, Param
from autotune.space.nodes import Entry, Node, Scalar, Table
from autotune.space.place import Place

KEYS: Final = ("command", "samples_per_iteration", "optimizer", "precision", "micro_batch",
               "activation_checkpointing")  # fmt: skip
"""Keys of a workload that is a command."""
MAX_SAMPLES: Final = 2**31
_NAME: Final = re.compile(rf"{OWNER}\.[A-Za-z_]\w*")
_TYPES: Final[dict[type, KnobType]] = {bool: "bool", int: "int", float: "float", str: "text"}


def is_command(root: Table) -> bool:
    """Whether the file's workload names a command."""
    section = root.get("workload")
    return isinstance(section, Table) and "command" in section.entries


def own_knobs(root: Table) -> tuple[Knob, ...] | None:
    """Return a knob for each ``command.NAME`` of the file; ``None`` where there is no command.

    Its type is that of its values, its default what the baseline says.

    Raises:
        SpaceError: No usable name, no type, or no value to compare with.
    """
    if not is_command(root):
        return None
    found: dict[str, dict[str, Entry]] = {}
    for section in sections.KNOB_SECTIONS:
        for entry in keys.entries(reading.table(root.get(section), section)):
            if entry.key.startswith(f"{OWNER}."):
                found.setdefault(entry.key, {})[section] = entry
    return tuple(_own_knob(name, entries) for name, entries in found.items())


def _own_knob(name: str, entries: dict[str, Entry]) -> Knob:
    first = next(iter(entries.values()))
    if not _NAME.fullmatch(name):
        raise first.place.error(
            f"{reading.shown(name)} cannot be the name of a setting",
            hint=f"write {OWNER}. and letters, digits and _",
        )
    stated = entries.get("baseline") or entries.get("fixed")
    if stated is None:
        raise first.place.error(
            f"{name} has no value to compare with",
            hint=f"say what you run today: baseline: {{{name}: …}}",
        )
    knob = Knob(
        owner=OWNER,
        name=name.partition(".")[2],
        type=_type_of(entries.get("params"), stated),
        default=None,
        numerics="neutral",
        read_back="parsed",
        read_from="nothing: it is passed to the command and reported as unverified",
        source="workload.command",
        meaning="A setting of the command.",
    )
    return dataclasses.replace(knob, default=reading.knob_value(stated.value, knob))


def _type_of(tuned: Entry | None, stated: Entry) -> KnobType:
    """The declared type, else the one that holds all its values."""
    nodes: list[Node] = [stated.value]
    if tuned is not None and isinstance(tuned.value, Table):
        declared = tuned.value.get("type")
        if declared is not None:
            words = tuple(_TYPES.values())
            word = reading.text(declared, f"type of {tuned.key}", words)
            return next(known for known in words if known == word)
        if "choices" not in tuned.value.entries:
            raise tuned.value.place.error(
                f"{tuned.key} has no type", hint="write type: int or type: float, or choices"
            )
        nodes += reading.sequence(tuned.value.get("choices"), f"choices of {tuned.key}")
    kinds = {type(reading.plain(node, stated.key)) for node in nodes}
    if kinds == {int, float}:
        return "float"
    kind = kinds.pop()
    if kinds or kind not in _TYPES:
        raise stated.value.place.error(
            f"{stated.key} has values of several types, or lists",
            hint="use numbers, texts, or true and false; type: text makes all of them texts",
        )
    return _TYPES[kind]


def read_command(root: Table, catalogue: Catalogue) -> CommandSpec:
    """Read the workload of a command.

    Raises:
        SpaceError: A key that no command has, no program, or a placeholder that is none.
    """
    table = sections.workload_table(root)
    for entry in keys.entries(table):
        if entry.key in keys.KEYS["workload"] and entry.key not in KEYS:
            raise entry.place.error(
                f"{entry.key} is of autotune's own training step, and this workload is a command",
                hint="use samples_per_iteration" if entry.key == "global_batch" else "remove it",
            )
    keys.check_keys(table, "workload", catalogue)
    node = table.entries["command"].value
    if len(catalogue.backends) > 1:
        raise node.place.error(
            f"a command is tuned under one backend, and the file names "
            f"{', '.join(catalogue.backends)}"
        )
    samples = reading.integer(
        sections.required(table, "samples_per_iteration", "workload"),
        "workload.samples_per_iteration",
        low=1,
        high=MAX_SAMPLES,
    )
    spec = CommandSpec(
        command=tuple(_arguments(node, catalogue)),
        global_batch=samples,
        optimizer=sections.optimizer(table, catalogue) if "optimizer" in table.entries else None,
        precision=sections.precision(table, catalogue) if "precision" in table.entries else None,
    )
    if spec.optimizer is not None and not _takes_file(spec, catalogue):
        raise table.entries["optimizer"].place.error(
            "optimizer does not reach the command: no argument holds the rendered configuration",
            hint=_hint("optimizer", catalogue),
        )
    return spec


def reached(spec: CommandSpec, catalogue: Catalogue) -> frozenset[str]:
    """Return the full names of the knobs whose value the command is given."""
    named = {name.removeprefix(PARAM) for name in _names(spec) if name.startswith(PARAM)}
    if _takes_file(spec, catalogue):
        backend = catalogue.backends[0]
        named |= {full for full, knob in catalogue.knobs.items() if knob.owner == backend}
        named.add("workload.micro_batch")
    # The command's processes inherit what it is started with.
    named |= {full for full, knob in catalogue.knobs.items() if knob.owner == environment.OWNER}
    return frozenset(named)


def check_reached(
    spec: CommandSpec,
    catalogue: Catalogue,
    *,
    params: Iterable[Param],
    stated: Mapping[str, Any],
    values: Sequence[tuple[str, Place]],
) -> None:
    """Refuse what is tuned or set and would change nothing.

    Args:
        spec: The command.
        catalogue: All knobs.
        params: Tuned parameters; ``values`` has their places.
        stated: Full knob name to value, of what is fixed or in the baseline.
        values: Full knob names with their places, first under params, then fixed, then baseline.

    Raises:
        SpaceError: At the first that does not reach the command.
    """
    known = reached(spec, catalogue)
    for full, place in dict(values).items():
        if stated.get(full) == AUTO and catalogue.knobs[full].type != "text":
            raise place.error(
                f"{full}: auto follows from the model, and a command's model is not known",
                hint="write the value that it stands for in your file",
            )
    names = {param.knob: param.name for param in params}
    for full, place in values:
        if full not in known:
            name = names.get(full, full)
            raise place.error(
                f"{name} does not reach the command: none of its arguments holds it",
                hint=_hint(name, catalogue),
            )


def _hint(name: str, catalogue: Catalogue) -> str:
    ways = [f"{{{PARAM}{name}}}"] if name != "optimizer" else []
    file = _placeholder(catalogue)
    if file is not None and not name.startswith(f"{OWNER}."):
        ways.insert(0, f"{{{file}}}")
    return f"add {' or '.join(ways)} to workload.command" if ways else "remove it"


def _arguments(node: Node, catalogue: Catalogue) -> Iterator[str]:
    items = reading.sequence(node, "workload.command")
    if not items:
        raise node.place.error(
            "workload.command is empty", hint="write for example [python, train.py]"
        )
    for index, item in enumerate(items):
        if not isinstance(item, Scalar):
            raise item.place.error(
                f"an argument is a text, found {reading.describe(item)}",
                hint='put it in quotes, as in "{deepspeed_json}"',
            )
        try:
            names = placeholders(item.text)
        except ValueError as error:
            raise item.place.error(
                f"workload.command: {error}", hint="write {{ and }} for the braces themselves"
            ) from None
        if index == 0 and (names or not item.text.strip()):
            raise item.place.error("the command's first word is the program, and no placeholder")
        full = {name: _full_name(name, item.place, catalogue) for name in names}
        yield renamed(item.text, full)


def _full_name(name: str, place: Place, catalogue: Catalogue) -> str:
    """The placeholder with the knob's full name.

    Raises:
        SpaceError: There is no such placeholder.
    """
    if name.startswith(PARAM):
        knob = catalogue.find(name.removeprefix(PARAM), place)
        if knob.full_name not in catalogue.knobs:
            raise place.error(
                f"{{{name}}} has no value: it is a knob of {knob.owner}, and the backend is "
                f"{catalogue.backends[0]}"
            )
        return f"{PARAM}{knob.full_name}"
    file = _placeholder(catalogue)
    known = [*([file] if file else []), TRIAL_DIR, PROCESSES]
    if name in known:
        return name
    others: dict[str | None, str] = {}
    for backend in registry.BUILTIN["backends"]:
        others.setdefault(_placeholder_of(backend), backend)
    if name in others:
        raise place.error(
            f"{{{name}}} is not there under {catalogue.backends[0]}, which reads no such file",
            hint=f"{others[name]} renders it",
        )
    listed = ", ".join(f"{{{one}}}" for one in [*known, f"{PARAM}NAME"])
    raise place.error(
        f"there is no placeholder {reading.shown(name)}",
        hint=f"known: {listed}; write {{{{ and }}}} for the braces themselves",
    )


def _placeholder(catalogue: Catalogue) -> str | None:
    return _placeholder_of(catalogue.backends[0])


def _placeholder_of(backend: str) -> str | None:
    placeholder: str | None = registry.load("backends", backend).placeholder
    return placeholder


def _takes_file(spec: CommandSpec, catalogue: Catalogue) -> bool:
    return _placeholder(catalogue) in _names(spec)


def _names(spec: CommandSpec) -> set[str]:
    return {name for argument in spec.command for name in placeholders(argument)}
