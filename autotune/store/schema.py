"""Version of our tables, and the way from an older one to it.

Our history has its own version table: the default one belongs to Optuna, whose tables live in the
same database (``optuna/storages/_rdb/storage.py``), and two histories in one table break each
other. The version is read before anything is written, so a newer database stays as it is.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, delete, insert, inspect, select, text

import autotune
from autotune.errors import SchemaTooNewError
from autotune.store.models import Base, MetaRow

VERSION_TABLE: Final = "autotune_alembic_version"
KNOWN: Final[tuple[str, ...]] = ("0001",)
"""Revisions this version can read, oldest first; the last is what the models describe."""
LOCATION: Final = "autotune.store:migrations"


def _is_ours(_item: object, name: str | None, kind: str, _reflected: bool, _other: object) -> bool:
    return kind != "table" or (name is not None and name.startswith("at_"))


def alembic_options() -> dict[str, Any]:
    """Options that restrict Alembic to our tables and our version table."""
    return {
        "target_metadata": Base.metadata,
        "version_table": VERSION_TABLE,
        "include_object": _is_ours,
        "compare_type": True,
    }


def current(connection: Connection) -> str | None:
    """The revision of our tables in this database, ``None`` where there are none."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608  # a constant
    return None if found is None else str(found)


def check(connection: Connection, shown_url: str) -> bool:
    """Whether the tables are up to date. Writes nothing.

    Raises:
        SchemaTooNewError: A newer version wrote them.
    """
    found = current(connection)
    if found is not None and found not in KNOWN:
        writer = _writer(connection)
        needed = f"autotune {writer} or newer" if writer else "a newer autotune"
        raise SchemaTooNewError(
            f"{shown_url} has schema {found}, written by autotune {writer or '(unknown)'}; "
            f"this autotune {autotune.__version__} knows schemas up to {KNOWN[-1]}. "
            "Nothing was changed",
            hint=f"upgrade with: pip install . in a checkout of {needed} "
            "(or choose another --storage)",
        )
    return found == KNOWN[-1]


def _writer(connection: Connection) -> str | None:
    if not inspect(connection).has_table(MetaRow.__tablename__):
        return None
    query = select(MetaRow.value).where(MetaRow.name == "written_by")
    return connection.execute(query).scalar()


def upgrade(connection: Connection, location: str = LOCATION) -> None:
    """Bring the tables to the newest revision inside the caller's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", location)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.execute(delete(MetaRow).where(MetaRow.name == "written_by"))
    connection.execute(insert(MetaRow).values(name="written_by", value=autotune.__version__))
