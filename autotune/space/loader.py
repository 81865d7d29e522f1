"""From a space file to a :class:`SearchSpace`; every fault is a :class:`SpaceError` with its place.

The order: YAML nodes, overrides, version, backend (its knob table gives the types), sections,
knobs, conditions, and last what only the whole can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import autotune
from autotune import registry
from autotune.knobs import reasons
from autotune.space import assembly, commands, keys, nodes, reading, sections
from autotune.space import overrides as edits
from autotune.space.catalogue import Catalogue
from autotune.space.model import CommandSpec
from autotune.space.nodes import Items, Node, Scalar, Table
from autotune.space.place import Place
from autotune.space.search_space import SearchSpace

VERSION: Final = 1


def load_space(name_or_path: str, overrides: Sequence[str] = ()) -> SearchSpace:
    """Load a space file by path, or a shipped one by name.

    Args:
        name_or_path: An existing path wins over a shipped name (``zero3.yaml`` or ``zero3``).
        overrides: ``KEY=VALUE`` of each ``--set``.

    Raises:
        SpaceError: There is no such file, or something in it or in an override is wrong.
    """
    path = find_space(name_or_path)
    file = str(path)
    start = Place(file=file)
    try:
        if not path.is_file():
            raise start.error("this is no regular file")
        with path.open("rb") as stream:
            raw = stream.read(nodes.MAX_BYTES + 1)
    except OSError as error:
        raise start.error(f"the file cannot be read: {error.strerror or error}") from None
    text = nodes.decode(raw, file)
    space = parse_space(text, file=file, overrides=overrides, base=path.absolute().parent)
    _check_data(space)
    return space


def find_space(name: str) -> Path:
    """Return the path of a space file, or of the shipped one that has this bare name.

    Raises:
        SpaceError: There is neither.
    """
    start = Place(file=name or "--space")
    try:
        path = Path(name)
        if name and path.is_dir():
            raise start.error("this is a folder, not a space file")
        if name and path.exists():
            return path
    except (OSError, ValueError) as error:
        raise start.error(f"this is no usable path: {_reason(error)}") from None
    if name and "/" not in name and "\\" not in name:
        for folder in shipped_folders():
            for candidate in (folder / name, folder / f"{name}.yaml"):
                if candidate.suffix == ".yaml" and candidate.is_file():
                    return candidate
    known = shipped_names()
    close = reading.nearest(name, known)
    hint = f"did you mean {close}?" if close else f"shipped spaces: {', '.join(known)}"
    raise start.error("there is no such file, and no shipped space of this name", hint=hint)


def shipped_folders() -> tuple[Path, ...]:
    """Folders that hold shipped spaces: inside a wheel, or beside the package in a checkout."""
    package = Path(autotune.__file__).resolve().parent
    candidates = (package / "_search_spaces", package.parent / "search_spaces")
    return tuple(folder for folder in candidates if folder.is_dir())


def shipped_names() -> tuple[str, ...]:
    """File names of the shipped spaces."""
    found = {path.name for folder in shipped_folders() for path in folder.glob("*.yaml")}
    return tuple(sorted(found))


def parse_space(
    text: str, *, file: str, overrides: Sequence[str] = (), base: Path | None = None
) -> SearchSpace:
    """Build a space from its text, as a study has stored it.

    Args:
        text: The YAML text.
        file: Name for messages.
        overrides: ``KEY=VALUE`` of each ``--set``.
        base: Folder that relative data paths start from; the current one by default. Whether
            they exist is not checked.

    Raises:
        SpaceError: Something is wrong, with its place.
    """
    root = _root(nodes.compose(text, file), file)
    root = edits.apply(root, overrides, file)
    _check_version(root)
    if root.get("backend") is None:
        keys.check_keys(root, "", None)
    backends = _backends(sections.required(root, "backend"))
    catalogue = Catalogue(backends, commands.own_knobs(root))
    keys.check_keys(root, "", catalogue)
    return assembly.assemble(
        root, catalogue, file=file, text=text, overrides=tuple(overrides), base=base or Path.cwd()
    )


def _root(node: Node | None, file: str) -> Table:
    if node is None or (isinstance(node, Scalar) and not node.quoted and node.text == ""):
        raise Place(file=file).error(
            "the file is empty", hint="a shipped space such as zero3.yaml is a good start"
        )
    if not isinstance(node, Table):
        kind = "a list" if isinstance(node, Items) else "a single text"
        raise node.place.error(
            f"a space file is a mapping, found {kind}", hint="it starts with version: 1"
        )
    return node


def _check_version(root: Table) -> None:
    if root.get("version") is None:
        keys.check_keys(root, "", None)
    node = sections.required(root, "version")
    version = reading.integer(node, "version")
    if version != VERSION:
        raise node.place.error(
            f"version {version} is not known to this autotune", hint=f"write version: {VERSION}"
        )


def _backends(node: Node) -> tuple[str, ...]:
    known = registry.names("backends")
    items = node.items if isinstance(node, Items) else (node,)
    if not items:
        raise node.place.error("backend is an empty list", hint=f"known: {', '.join(known)}")
    names: list[str] = []
    for item in items:
        found = reading.scalar(item, "backend", f"one of {', '.join(known)}")
        if found.text not in known:
            raise found.place.error(
                f"unknown backend {reading.shown(found.text)}",
                hint=reading.suggestion(found.text, known),
            )
        if found.text in names:
            raise found.place.error(f"backend has {found.text} twice", hint="keep one of them")
        twin = reasons.ALIASES.get(found.text)
        if twin in names:
            raise found.place.error(
                "backend has both deepspeed and zero3, which is deepspeed at zero_stage 3",
                hint="keep deepspeed, and tune zero_stage",
            )
        names.append(found.text)
    return tuple(names)


def _check_data(space: SearchSpace) -> None:
    jsonl = None if isinstance(space.workload, CommandSpec) else space.workload.data.jsonl
    if jsonl is None:
        return
    place = space.place("workload.data.jsonl")
    problem: str | None = None
    try:
        if not Path(jsonl).exists():
            problem = f"there is no file {jsonl}"
        elif not Path(jsonl).is_file():
            problem = f"{jsonl} is no file"
    except (OSError, ValueError) as error:
        problem = f"{reading.shown(jsonl)} is no usable path: {_reason(error)}"
    if problem is not None:
        raise place.error(
            f"workload.data.jsonl: {problem}",
            hint="give a path relative to the space file or to the current folder",
        )


def _reason(error: OSError | ValueError) -> str:
    """What the system says, without the path, which the message has already."""
    return getattr(error, "strerror", None) or str(error)
