"""Database URLs, engines, and what their errors mean for the user.

SQLite keeps its default rollback journal: write-ahead logging would be stored in the file, so
apply to Optuna's connections too, and breaks on network mounts, where it needs shared memory
(sqlite.org/wal.html). Only the coordinator writes, so nothing is lost.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from autotune.errors import AutotuneError, EnvironmentFault, InputError

BUSY_S: Final = 30.0
"""How long to wait for another writer (s): Optuna's or a dashboard's."""

WRITES: Final = "autotune_writes"
"""Execution option of a transaction that will write."""


def parse(url: str) -> URL:
    """Return the parsed URL.

    Raises:
        InputError: It is not one.
    """
    try:
        url.encode("utf-8")  # a name with other bytes can be neither shown nor opened
        return make_url(url)
    except (ArgumentError, ValueError) as error:  # a port that is no number
        raise InputError(
            "--storage is not a database URL",
            hint="write for example sqlite:///runs/autotune.db or postgresql://user@host/name",
        ) from error


def sqlite_file(url: URL) -> Path | None:
    """The file of a SQLite database, ``None`` for a server or one in memory."""
    if url.get_backend_name() != "sqlite" or not url.database or "uri" in url.query:
        return None
    return None if url.database == ":memory:" else Path(url.database)


def make_engine(url: URL) -> Engine:
    """Return an engine whose transactions take in DDL, also on SQLite.

    Raises:
        EnvironmentFault: The driver is missing.
    """
    is_sqlite = url.get_backend_name() == "sqlite"
    arguments: dict[str, Any] = {"connect_args": {"timeout": BUSY_S}} if is_sqlite else {}
    if sqlite_file(url) is not None:
        arguments["poolclass"] = NullPool
    try:
        engine = create_engine(url, **arguments)
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        raise EnvironmentFault(
            f"the driver for {url.drivername} databases cannot be loaded: {error}",
            hint=_how_to_get(error),
        ) from error
    if is_sqlite:
        event.listen(engine, "connect", _own_transactions)
        event.listen(engine, "begin", _begin)
    return engine


_DRIVERS: Final = {"psycopg": "'psycopg[binary]'", "psycopg2": "psycopg2-binary"}
"""Module to the requirement that brings it; what ``postgresql://`` means changed in
SQLAlchemy 2.1 from the second to the first."""


def _how_to_get(error: Exception) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing in _DRIVERS:
        others = " or ".join(f"postgresql+{name}://" for name in _DRIVERS)
        return f"pip install {_DRIVERS[missing]}, or name the driver that is there: {others}"
    return "install its driver into this environment, or use sqlite:///FILE or postgresql://…"


def _own_transactions(connection: sqlite3.Connection, _record: object) -> None:
    # The driver opens no transaction before DDL, so a failed migration would stay half done.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys=ON")


def _begin(connection: Connection) -> None:
    # Two that read first and then both want to write would wait for each other: SQLite refuses one
    # of them at once, whatever the time limit (sqlite.org/c3ref/busy_handler.html).
    writes = connection.get_execution_options().get(WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def explain(error: DBAPIError, shown_url: str) -> AutotuneError:
    """Return the error to show for what the database said."""
    text = str(error.orig)
    if "is full" in text:
        return EnvironmentFault(
            f"no space left on the disk that holds {shown_url}",
            hint="free some space or choose another --runs; the same command resumes",
        )
    if "locked" in text:
        return EnvironmentFault(
            f"{shown_url} stayed locked by another program for {BUSY_S:.0f} s",
            hint="close the program that writes to it; the same command resumes",
        )
    if "not a database" in text or "malformed" in text:
        return EnvironmentFault(
            f"{shown_url} is damaged or not a database ({text})",
            hint="move it away and rebuild it with 'autotune import RUNS_DIR'",
        )
    if "no such table" in text:
        return EnvironmentFault(
            f"{shown_url} has lost its tables: it was removed or replaced while it was in use",
            hint="the same command fills it again from the study's folder",
        )
    return EnvironmentFault(
        f"{shown_url} cannot be used: {text.strip().splitlines()[0] if text else error}",
        hint="check that it can be reached and written, or choose another --storage",
    )
