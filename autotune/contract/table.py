"""A table: every configuration of a grid, launched once and recorded. JSON Lines.

The first line is the header: the work, the machine, the rules of measuring. Each further line is
one launch, with the records that its ranks left. ``benchmarks/tables.py`` writes tables, and the
launcher ``replay`` plays them. A table is complete in itself: nothing in it names a file or a
host. It may be compressed with gzip; a last line without an end is one that was being written,
and is not read.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from autotune.contract import codec, jsonfile
from autotune.contract.outcome import Failure, RankRecord
from autotune.contract.plan import Measuring, Topology
from autotune.errors import InputError, RecordError, SchemaTooNewError

SCHEMA_VERSION: Final = 1
MAX_BYTES: Final = 64 * 1024 * 1024
"""Size of a table's text; a larger one is refused unread."""
GZIP_MAGIC: Final = b"\x1f\x8b"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableDevice:
    """One device that the ranks ran on."""

    name: str
    memory_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Depth:
    """How many of a published model's decoder layers were kept."""

    layers: int
    of: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableHeader:
    """What all launches of a table have in common; the first line."""

    format: Literal["autotune-table"] = "autotune-table"
    schema_version: int = SCHEMA_VERSION
    name: str
    recorded_at: str
    """UTC date and time at which the recording began."""
    grid: str
    """The grid file's text: a space file whose parameters are lists."""
    overrides: tuple[str, ...] = ()
    """``KEY=VALUE`` that the grid was changed by."""
    grid_fingerprint: str
    """Digest of the grid's meaning, its measuring rules included."""
    num_configs: int
    """Configurations of the grid that may be launched, the baseline included."""
    refused: dict[str, int] = dataclasses.field(default_factory=dict)
    """Why others cost no launch, with their number."""
    baseline_key: str
    """Canonical key of the configuration that is launched first: the others' losses and gradient
    norms are compared with its."""
    depth: Depth | None = None
    """``None``: the model is whole."""
    workload: dict[str, Any]
    """``contract.plan.Workload`` as plain data."""
    topology: Topology
    environment: dict[str, Any]
    """As a study's, without the host's name."""
    devices: tuple[TableDevice, ...]
    """By rank; empty without one."""
    host_memory_bytes: int
    measuring: Measuring
    memory_margin_share: float
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What conditions of knobs may name of the model and the machine's packages."""
    seed: int
    """Of the order in which the configurations are launched."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRow:
    """One launch; a line."""

    launch: int
    """Place in the order of the recording, from 0."""
    repeat: int = 0
    """0: the configuration's first launch; above: launched again at the end."""
    key: str
    backend: str
    params: dict[str, Any]
    """The grid's parameters that were active."""
    config: dict[str, Any]
    """Every knob of the backend and the workload, by full name."""
    dead: tuple[str, ...] = ()
    """Knobs of ``config`` that change nothing there."""
    submitted_at: float
    wall_s: float
    """From submission until all processes were reaped."""
    overhead_s: float
    """``wall_s`` less warm-up and timed iterations."""
    failure: Failure | None = None
    """Why it has no valid time; ``None``: it was measured."""
    s_per_it: float | None = None
    """As it was judged; ``None`` with a failure. The raw times are in ``ranks``."""
    ranks: tuple[RankRecord, ...]
    """What each rank recorded, by rank; one that left no record is missing. Without plan digest
    and process id."""

    def __post_init__(self) -> None:
        if (self.failure is None) == (self.s_per_it is None):
            raise ValueError("a row has either a time or a failure")
        if self.failure is None and any(one.measurement is None for one in self.ranks):
            raise ValueError("a row with a time has a measurement of every rank")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """A table that was read."""

    path: Path
    digest: str
    """SHA-256 of its text."""
    header: TableHeader
    rows: tuple[TableRow, ...]

    def launches(
        self, key: str, backend: str, config: Mapping[str, Any], stated: Collection[str]
    ) -> tuple[TableRow, ...]:
        """Return the recorded launches of a configuration, the first one first.

        It is found by its canonical key. Where the program has gained knobs since, keys are
        others: then it is the configuration whose knobs are equal, and what is new must have been
        left alone. A row that was launched with a knob that is not named here is another one.

        Args:
            key: Canonical key.
            backend: Name of its backend.
            config: Every knob by full name.
            stated: Knobs that the user tunes or sets.
        """
        if key in self._by_key:
            return self._by_key[key]
        found = [
            rows
            for rows in self._by_key.values()
            if rows[0].backend == backend and _equal(rows[0], config, stated)
        ]
        return found[0] if len(found) == 1 else ()

    @functools.cached_property
    def _by_key(self) -> dict[str, tuple[TableRow, ...]]:
        found: dict[str, list[TableRow]] = defaultdict(list)
        for row in sorted(self.rows, key=lambda row: row.repeat):
            found[row.key].append(row)
        return {key: tuple(rows) for key, rows in found.items()}

    @functools.cached_property
    def spread(self) -> float:
        """Standard deviation between launches of one configuration, as a share of its time.

        From configurations that were launched twice, whose times differ by the root of two of
        it; 0 where there are none.
        """
        logs = [
            math.log(again.s_per_it / first.s_per_it)
            for first, *more in self._by_key.values()
            for again in more
            if first.s_per_it is not None and again.s_per_it is not None
        ]
        if not logs:
            return 0.0
        return math.sqrt(math.fsum(one * one for one in logs) / len(logs) / 2.0)


def _equal(row: TableRow, config: Mapping[str, Any], stated: Collection[str]) -> bool:
    shared = (config.keys() & row.config.keys()) - set(row.dead)
    new = config.keys() - row.config.keys()
    gone = row.config.keys() - config.keys() - set(row.dead)
    if gone or new & set(stated):
        return False
    return all(
        type(config[name]) is type(row.config[name]) and config[name] == row.config[name]
        for name in shared
    )


def to_line(record: TableHeader | TableRow) -> bytes:
    """Return a header or a row as one line."""
    text = json.dumps(codec.to_json(record), separators=(",", ":"), allow_nan=False)
    return text.encode("ascii") + b"\n"


def read_table(path: Path) -> Table:
    """Read a table, compressed or not.

    Raises:
        InputError: There is no such file, or it is no table.
        SchemaTooNewError: A newer autotune wrote it.
    """
    text = read_text(path)
    try:
        header, rows = parse(text, str(path))
    except RecordError as error:
        raise InputError(
            error.message, hint="a table is written by benchmarks/tables.py"
        ) from error
    return Table(path=path, digest=hashlib.sha256(text).hexdigest(), header=header, rows=rows)


def read_text(path: Path) -> bytes:
    """Return a table's text, unpacked.

    Raises:
        InputError: There is no such file, it is too large, or it cannot be unpacked.
    """
    try:
        if not path.is_file():
            raise InputError(f"there is no table {path}")
        with path.open("rb") as file:
            packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        with gzip.open(path, "rb") if packed else path.open("rb") as stream:
            text = stream.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise InputError(f"table {path} cannot be read: {error}") from error
    if len(text) > MAX_BYTES:
        raise InputError(f"{path} is larger than any table ({MAX_BYTES:,} bytes)")
    return text


def parse(text: bytes, where: str) -> tuple[TableHeader, tuple[TableRow, ...]]:
    """Return the header and the whole lines of a table's text.

    Raises:
        RecordError: A line is not what its place says.
        SchemaTooNewError: A newer autotune wrote it.
    """
    lines = text.split(b"\n")[:-1]
    if not lines:
        raise RecordError(f"{where}: no table, for it has not even a first line")
    first = jsonfile.parse(lines[0], where=f"{where}, line 1")
    version = first.get("schema_version") if isinstance(first, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise SchemaTooNewError(
            f"{where}: a newer autotune wrote this table (version {version})",
            hint="upgrade autotune to play it",
        )
    header = codec.from_json(TableHeader, first, where=f"{where}, line 1")
    return header, tuple(_rows(lines[1:], where))


def _rows(lines: Iterable[bytes], where: str) -> Iterable[TableRow]:
    for number, line in enumerate(lines, start=2):
        place = f"{where}, line {number}"
        yield codec.from_json(TableRow, jsonfile.parse(line, where=place), where=place)
