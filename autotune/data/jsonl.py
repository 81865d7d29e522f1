"""JSON Lines samples: every line checked, chosen ones read again by their place.

A line is an object in one of three forms::

    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
    {"prompt": "…", "completion": "…"}
    {"text": "…"}

Other keys are ignored. Blank lines are no samples.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from autotune.errors import InputError

FORMS: Final = '{"messages": […]}, {"prompt": "…", "completion": "…"} or {"text": "…"}'


class JsonLines:
    """The samples of a file."""

    def __init__(self, path: Path) -> None:
        """Check every line, so that a damaged file is known before anything is timed.

        Raises:
            InputError: The file cannot be read, has no sample, or a line is none.
        """
        self.path = path
        self._offsets = array("q")
        self._lines = array("q")
        try:
            with path.open("rb") as file:
                offset = 0
                for line, raw in enumerate(file, start=1):
                    if raw.strip():
                        self._parse(raw, line)
                        self._offsets.append(offset)
                        self._lines.append(line)
                    offset += len(raw)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
        if not self._offsets:
            raise InputError(f"{path} holds no samples", hint=f"write one a line: {FORMS}")

    def __len__(self) -> int:
        return len(self._offsets)

    def read(self, indices: Iterator[int]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield line number and sample of each of ``indices``."""
        with self.path.open("rb") as file:
            for index in indices:
                file.seek(self._offsets[index])
                line = self._lines[index]
                yield line, self._parse(file.readline(), line)

    def _parse(self, raw: bytes, line: int) -> Mapping[str, Any]:
        where = f"{self.path}:{line}"
        try:
            data = json.loads(raw.decode("utf-8-sig" if line == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            raise InputError(f"{where}: not UTF-8 text (byte {error.start + 1})") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not JSON: {error}") from error
        problem = _problem(data)
        if problem is not None:
            raise InputError(f"{where}: {problem}", hint=f"a sample is {FORMS}")
        assert isinstance(data, dict)
        return data


def _problem(data: Any) -> str | None:
    """Say why ``data`` is no sample."""
    if not isinstance(data, dict):
        return "a sample must be a JSON object"
    if "messages" in data:
        return _messages_problem(data["messages"])
    keys = ("prompt", "completion") if "prompt" in data or "completion" in data else ("text",)
    for key in keys:
        if key not in data:
            return f"the sample has no {key!r}"
        if not isinstance(data[key], str):
            return f"{key!r} must be text"
    return None


def _messages_problem(messages: Any) -> str | None:
    if not isinstance(messages, list) or not messages:
        return "'messages' must be a list of at least one message"
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f"message {number} must be an object with a 'role'"
        content = message.get("content")
        parts = content if isinstance(content, list) else ()
        if not isinstance(content, str | list | None) or not all(
            isinstance(part, dict) for part in parts
        ):
            return f"the 'content' of message {number} must be text"
    return None
