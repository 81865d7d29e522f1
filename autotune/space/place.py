"""Where something stands in a space file."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Final

from autotune.errors import InputError, SpaceError

MAX_SHOWN: Final = 200
"""Characters of the user's own text that a message repeats."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """A line and a column, both from 1, of a file or of an override."""

    file: str
    line: int = 1
    column: int = 1
    override: str | None = None
    """``KEY`` of the ``--set KEY=VALUE`` that put it there. Errors then point to the start of the
    file, as every error about a space starts with a place in it, and name the override."""

    def error(self, message: str, *, hint: str | None = None) -> SpaceError:
        """Return the error to raise for a fault here."""
        if self.override is not None:
            message = f"--set {shortened(self.override)}: {message}"
        return SpaceError(
            printable(message),
            file=printable(self.file),
            line=self.line,
            column=self.column,
            hint=None if hint is None else printable(hint),
        )

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """Give errors about what is named here, such as a model's folder, this place."""
        try:
            yield
        except SpaceError:
            raise
        except InputError as error:
            raise self.error(error.message, hint=error.hint) from error

    def shifted(self, columns: int) -> Place:
        """The place some columns to the right."""
        if self.override is not None:
            return self
        return dataclasses.replace(self, column=self.column + columns)

    @property
    def words(self) -> str:
        """``line 7``, or ``--set KEY``."""
        return f"line {self.line}" if self.override is None else f"--set {self.override}"


def shortened(text: str) -> str:
    """A name for a message, cut where it is longer than any that means something."""
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def printable(text: str) -> str:
    """One line without control characters: what a file holds must not steer a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
