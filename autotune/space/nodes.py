"""The YAML text of a space file as plain nodes that know where they stand. Nothing else.

PyYAML scans and parses; its constructor, which can run code and guesses types, is not used.
Scalars stay text until the schema says what they are. Limits keep a hostile file cheap: they are
checked on the parser's events, before anything is expanded.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from autotune.space.place import Place

MAX_BYTES: Final = 256 * 1024
"""Size of a space file."""
MAX_NODES: Final = 20_000
"""Values of a space file, counted as if every alias were written out."""
MAX_DEPTH: Final = 40
"""Levels of nested lists and mappings."""

_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
_TEXT_TAGS: Final = ("!", "tag:yaml.org,2002:str")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Scalar:
    """A word, a number or a text; ``text`` is what was written, without quotes."""

    place: Place
    text: str
    quoted: bool
    """In quotes, a block text, or tagged ``!!str``: a text even if it looks like a number."""
    single_line: bool
    """Written as it stands: offsets in ``text`` are columns in the file."""
    size: int = 1

    def place_of(self, offset: int) -> Place:
        """Where in the file the character ``offset`` of the text stands."""
        return self.place.shifted(offset + self.quoted) if self.single_line else self.place


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Items:
    """A list."""

    place: Place
    items: tuple[Node, ...]
    size: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """A key of a mapping, where it stands, and its value."""

    key: str
    place: Place
    value: Node


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """A mapping with text keys; merge keys are already resolved."""

    place: Place
    entries: dict[str, Entry]
    size: int

    def get(self, key: str) -> Node | None:
        """The value of ``key``, if it is there."""
        entry = self.entries.get(key)
        return None if entry is None else entry.value


Node = Scalar | Items | Table


def decode(raw: bytes, file: str) -> str:
    """Return the text of a file.

    Raises:
        SpaceError: It is too large or not UTF-8.
    """
    start = Place(file=file)
    if len(raw) > MAX_BYTES:
        raise start.error(f"the file is larger than {MAX_BYTES:,} bytes; that is no space file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8", "replace").removeprefix("\ufeff")
        lines = before.split("\n")
        place = Place(file=file, line=len(lines), column=len(lines[-1]) + 1)
        raise place.error(
            f"byte 0x{raw[error.start]:02x} is not UTF-8", hint="save the file as UTF-8"
        ) from None


def compose(text: str, file: str, *, override: str | None = None) -> Node | None:
    """Return the one document of ``text``, ``None`` if there is nothing in it.

    Args:
        text: YAML.
        file: Name for messages.
        override: ``KEY`` when the text is the value of a ``--set``.

    Raises:
        SpaceError: It is not YAML, or uses what a space file may not.
    """
    return _Composer(text, file, override).document()


class _Composer:
    """One pass over the parser's events."""

    def __init__(self, text: str, file: str, override: str | None) -> None:
        self.file = file
        self.override = override
        self.text = text
        self.anchors: dict[str, Node | None] = {}
        self.count = 0
        self.depth = 0

    def place(self, mark: Any) -> Place:
        if self.override is not None or mark is None:
            return Place(file=self.file, override=self.override)
        return Place(file=self.file, line=mark.line + 1, column=mark.column + 1)

    def document(self) -> Node | None:
        try:
            events = yaml.parse(self.text, Loader=yaml.BaseLoader)
            return self.only_document(events)
        except yaml.reader.ReaderError as error:
            raise self.unreadable(error) from None
        except yaml.MarkedYAMLError as error:
            raise self.unparsable(error) from None
        except (yaml.YAMLError, ValueError, IndexError, RecursionError) as error:
            raise self.place(None).error(f"this is not YAML: {error}") from None

    def only_document(self, events: Iterator[Any]) -> Node | None:
        found: Node | None = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self.place(event.start_mark).error(
                        "a second document starts here; a space file has one",
                        hint="remove the line --- or put the other space into a file of its own",
                    )
                found = self.node(next(events), events)
        return found

    def node(self, event: Any, events: Iterator[Any]) -> Node:
        place = self.place(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event, place)
        self.grow(1, place)
        anchor = event.anchor
        if anchor is not None:
            self.anchors[anchor] = None
        node = self.value(event, events, place)
        if anchor is not None:
            self.anchors[anchor] = node
        return node

    def value(self, event: Any, events: Iterator[Any], place: Place) -> Node:
        if isinstance(event, yaml.ScalarEvent):
            return self.scalar(event, place)
        expected = "seq" if isinstance(event, yaml.SequenceStartEvent) else "map"
        if event.tag not in (None, "!", f"tag:yaml.org,2002:{expected}"):
            raise self.tagged(event.tag, place)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise place.error(f"lists and mappings nest more than {MAX_DEPTH} levels deep")
        node: Node = self.items(events, place) if expected == "seq" else self.table(events, place)
        self.depth -= 1
        return node

    def scalar(self, event: Any, place: Place) -> Scalar:
        if event.tag is not None and event.tag not in _TEXT_TAGS:
            raise self.tagged(event.tag, place)
        if _NO_TEXT.search(event.value):
            raise place.error(
                "the character NUL, or half of a surrogate pair, cannot be given to a program"
            )
        start, end = event.start_mark, event.end_mark
        quotes = 0 if event.style is None else 2
        whole = start.line == end.line and end.column - start.column == len(event.value) + quotes
        return Scalar(
            place=place,
            text=event.value,
            quoted=event.style is not None or event.tag is not None,
            single_line=whole and event.style not in ("|", ">") and event.tag is None,
        )

    def alias(self, event: Any, place: Place) -> Node:
        name = event.anchor
        if name not in self.anchors:
            raise place.error(f"the alias *{name} has no anchor &{name} before it")
        node = self.anchors[name]
        if node is None:
            raise place.error(f"the alias *{name} stands inside its own anchor &{name}")
        self.grow(node.size, place)
        return node

    def grow(self, size: int, place: Place) -> None:
        self.count += size
        if self.count > MAX_NODES:
            raise place.error(
                f"the file has more than {MAX_NODES:,} values, counted with every alias written out"
            )

    def items(self, events: Iterator[Any], place: Place) -> Items:
        items: list[Node] = []
        for event in events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            items.append(self.node(event, events))
        size = 1 + sum(item.size for item in items)
        return Items(place=place, items=tuple(items), size=size)

    def table(self, events: Iterator[Any], place: Place) -> Table:
        entries: dict[str, Entry] = {}
        own: dict[str, Place] = {}
        size = 1
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key_place = self.place(event.start_mark)
            key = self.node(event, events)
            value = self.node(next(events), events)
            size += 1 + value.size
            if not isinstance(key, Scalar):
                raise key_place.error("a key must be a word, not a list or a mapping")
            if key.text in own:
                raise self.duplicate(key, key_place, own[key.text])
            own[key.text] = key_place
            if key.text == "<<" and not key.quoted:
                _merge(entries, value, key_place)
            elif not key.text:
                raise key_place.error("a key is empty")
            else:
                entries[key.text] = Entry(key=key.text, place=key_place, value=value)
        return Table(place=place, entries=entries, size=size)

    def duplicate(self, key: Scalar, place: Place, first: Place) -> Exception:
        hint = "keep one of them"
        if key.text == "<<":
            hint = "merge several anchors as a list: <<: [*a, *b]"
        here = place.words if self.override is None else "again"
        before = first.words if self.override is None else "before"
        return place.error(f"the key {key.text!r} stands twice: {before} and {here}", hint=hint)

    def tagged(self, tag: str, place: Place) -> Exception:
        shown = tag.replace("tag:yaml.org,2002:", "!!")
        return place.error(
            f"the tag {shown} is refused: a space file is plain data", hint="remove the tag"
        )

    def unreadable(self, error: Any) -> Exception:
        before = self.text[: error.position].split("\n")
        place = Place(file=self.file, line=len(before), column=len(before[-1]) + 1)
        if self.override is not None:
            place = self.place(None)
        character = error.character
        code = ord(character) if isinstance(character, str) else int(character)
        return place.error(f"the character U+{code:04X} may not stand in YAML")

    def unparsable(self, error: Any) -> Exception:
        place = self.place(error.problem_mark or error.context_mark)
        problem = str(error.problem or error.context or "it cannot be parsed").strip()
        hint = None
        if "'\\t'" in problem or "\\t" in problem:
            hint = "indent with spaces, not with tabs"
        elif error.context is not None and error.problem is not None:
            hint = f"YAML was {error.context.strip()}"
        return place.error(f"this is not YAML: {problem}", hint=hint)


def _merge(entries: dict[str, Entry], value: Node, place: Place) -> None:
    """Add the entries of merged mappings that are not there yet: earlier ones win."""
    sources = value.items if isinstance(value, Items) else (value,)
    for source in sources:
        if not isinstance(source, Table):
            raise place.error(
                "<< merges mappings only", hint="write <<: *anchor, or <<: [*first, *second]"
            )
        for key, entry in source.entries.items():
            entries.setdefault(key, entry)
