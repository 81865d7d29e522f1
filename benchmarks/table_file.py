"""A table while it is recorded: plain lines, each on disk before the next launch."""

from __future__ import annotations

import dataclasses
import gzip
import os
import re
from pathlib import Path

from grids import differences

from autotune.contract.outcome import Failure, RankRecord
from autotune.contract.table import TableHeader, TableRow, parse, read_text, to_line
from autotune.errors import InputError

DETAIL = 2000
"""Characters of a message or traceback that are kept."""
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.+@-]+/)+")


class TableFile:
    """A table that grows: every row is on disk when :meth:`append` returns."""

    def __init__(self, path: Path, header: TableHeader, start: Path | None) -> None:
        """Begin a table, or go on with the one at ``path``, else with a copy of ``start``."""
        self.path = path
        self.packed = path.with_name(f"{path.name}.gz")
        self.rows: list[TableRow] = []
        self.header = header
        source = next((one for one in (path, self.packed, start) if one and one.exists()), None)
        if start is not None and source is None:
            raise InputError(f"there is no table {start}")
        text = b"" if source is None else read_text(source)
        if b"\n" in text:
            self.header, rows = parse(text, str(source))
            self.rows = list(rows)
            changed = differences(self.header, header)
            if changed:
                lines = "".join(f"\n  {line}" for line in changed)
                raise InputError(
                    f"{source} was recorded under other conditions:{lines}",
                    hint="give another --output, or go back to them",
                )
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, b"".join([to_line(self.header), *map(to_line, self.rows)]))
        self._file = path.open("ab")

    def append(self, row: TableRow) -> None:
        """Add a row for good."""
        self._file.write(to_line(row))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows.append(row)

    def pack(self) -> Path:
        """Compress the whole table; the same rows give the same bytes."""
        self._file.close()
        _write(self.packed, gzip.compress(self.path.read_bytes(), compresslevel=9, mtime=0))
        self.path.unlink()
        return self.packed

    def first(self, key: str) -> TableRow | None:
        """The first launch of a configuration."""
        return next((row for row in self.rows if row.key == key and not row.repeat), None)


def _write(path: Path, data: bytes) -> None:
    """Write a file that is whole or absent, also after a crash."""
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def portable(record: RankRecord) -> RankRecord:
    """The record without what belongs to one launch or machine only."""
    error = record.error
    if error is not None:
        error = dataclasses.replace(
            error,
            message=_without_folders(error.message)[:DETAIL],
            traceback=_without_folders(error.traceback)[-DETAIL:],
        )
    return dataclasses.replace(record, pid=0, plan_digest="", error=error)


def portable_failure(failure: Failure) -> Failure:
    """The failure without folders of the machine."""
    return dataclasses.replace(
        failure,
        reason=_without_folders(failure.reason),
        detail=_without_folders(failure.detail)[-DETAIL:],
    )


def _without_folders(text: str) -> str:
    return _FOLDERS.sub("", text)
