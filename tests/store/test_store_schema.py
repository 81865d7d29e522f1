from __future__ import annotations

import hashlib
import sqlite3
import sys
from pathlib import Path

import optuna
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from study_factory import StudyBuilder, make_study, measured

from autotune.errors import EnvironmentFault, InputError, SchemaTooNewError
from autotune.store import schema
from autotune.store.connection import make_engine, parse
from autotune.store.database import Store, default_url
from autotune.store.models import Base


def optuna_storage(url: str) -> optuna.storages.RDBStorage:
    return optuna.storages.RDBStorage(url)


def exercise_optuna(storage: optuna.storages.RDBStorage) -> None:
    study = optuna.create_study(storage=storage, study_name="demo", load_if_exists=True)
    trial = study.ask()
    trial.suggest_float("x", 0.0, 1.0)
    study.tell(trial, 0.5)
    assert study.best_value == 0.5


@pytest.mark.parametrize("first", ["ours", "optuna"])
def test_our_tables_and_optunas_share_a_database_in_both_orders(tmp_path: Path, first: str) -> None:
    url = default_url(tmp_path)
    if first == "ours":
        study = StudyBuilder(tmp_path)
        storage = optuna_storage(url)
    else:
        storage = optuna_storage(url)
        exercise_optuna(storage)
        study = StudyBuilder(tmp_path)
    exercise_optuna(storage)
    study.trial(measured(0.5))
    # Both open it again and find their own history.
    Store(url).close()
    exercise_optuna(optuna_storage(url))
    assert len(study.recorder.trials()) == 1
    tables = {
        row[0]
        for row in sqlite3.connect(tmp_path / "autotune.db").execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        )
    }
    assert {"alembic_version", "autotune_alembic_version", "at_trials", "trials"} <= tables


def test_autogenerate_finds_nothing_to_change_and_leaves_optunas_tables(tmp_path: Path) -> None:
    url = default_url(tmp_path)
    Store(url).close()
    exercise_optuna(optuna_storage(url))
    with create_engine(url).connect() as connection:
        options = schema.alembic_options()
        metadata = options.pop("target_metadata")
        context = MigrationContext.configure(
            connection, opts=options | {"target_metadata": metadata}
        )
        assert compare_metadata(context, Base.metadata) == []


def test_the_known_revisions_are_those_of_the_scripts() -> None:
    config = Config()
    config.set_main_option("script_location", schema.LOCATION)
    revisions = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert tuple(reversed(revisions)) == schema.KNOWN


def test_all_our_tables_carry_the_prefix() -> None:
    assert all(name.startswith("at_") for name in Base.metadata.tables)


def test_a_newer_schema_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    """BUG-023: both versions, the exact step, and the file as it was."""
    study = StudyBuilder(tmp_path)
    study.trial(measured(0.5))
    file = tmp_path / "autotune.db"
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE autotune_alembic_version SET version_num = '0042'")
        connection.execute("UPDATE at_meta SET value = '7.1.0' WHERE name = 'written_by'")
    connection.close()
    before = hashlib.sha256(file.read_bytes()).hexdigest()

    with pytest.raises(SchemaTooNewError) as caught:
        Store(default_url(tmp_path))

    assert caught.value.exit_code == 3
    assert "0042" in caught.value.message
    assert schema.KNOWN[-1] in caught.value.message
    assert "7.1.0" in caught.value.message
    assert caught.value.hint is not None
    assert "pip install . in a checkout of autotune 7.1.0 or newer" in caught.value.hint
    assert hashlib.sha256(file.read_bytes()).hexdigest() == before
    assert [path.name for path in tmp_path.glob("autotune.db*")] == ["autotune.db"]


SECOND = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "0002", "0001"
branch_labels = depends_on = None

def upgrade():
    op.add_column("at_studies", sa.Column("owner", sa.Text(), nullable=True))
    {tail}
"""


def scripts_with_a_second_revision(folder: Path, tail: str) -> str:
    source = Path(schema.__file__).parent / "migrations"
    (folder / "versions").mkdir(parents=True)
    (folder / "env.py").write_text((source / "env.py").read_text())
    for file in (source / "versions").glob("*.py"):
        (folder / "versions" / file.name).write_text(file.read_text())
    (folder / "versions" / "v0002_second.py").write_text(SECOND.format(tail=tail))
    return str(folder)


def columns(file: Path) -> set[str]:
    rows = sqlite3.connect(file).execute("PRAGMA table_info(at_studies)").fetchall()
    return {row[1] for row in rows}


def test_an_older_schema_is_migrated_and_keeps_its_rows(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path)
    location = scripts_with_a_second_revision(tmp_path / "scripts", "pass")
    with make_engine(parse(default_url(tmp_path))).begin() as connection:
        schema.upgrade(connection, location)
    assert "owner" in columns(tmp_path / "autotune.db")
    assert study.store.study("demo") == make_study()


def test_a_migration_that_fails_half_way_leaves_the_old_schema(tmp_path: Path) -> None:
    StudyBuilder(tmp_path)
    location = scripts_with_a_second_revision(
        tmp_path / "scripts", 'raise RuntimeError("the power went out")'
    )
    with (
        pytest.raises(RuntimeError, match="power"),
        make_engine(parse(default_url(tmp_path))).begin() as connection,
    ):
        schema.upgrade(connection, location)
    assert "owner" not in columns(tmp_path / "autotune.db")
    assert Store(default_url(tmp_path)).study("demo") == make_study()


def test_no_transaction_of_ours_stays_open(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path)
    study.trial(measured(0.5))
    study.store.contents("demo", study.folder)
    other = sqlite3.connect(tmp_path / "autotune.db", timeout=0)
    other.execute("BEGIN EXCLUSIVE")  # fails at once if anyone holds even a read lock
    other.rollback()


def test_a_full_disk_is_said_in_words(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path)
    pages = sqlite3.connect(tmp_path / "autotune.db").execute("PRAGMA page_count").fetchone()[0]
    engine = study.store._engine
    from sqlalchemy import event

    event.listen(engine, "connect", lambda c, _: c.execute(f"PRAGMA max_page_count={pages}"))
    with pytest.raises(EnvironmentFault, match="no space left") as caught:
        study.store.put_study(make_study(space_text="x" * 1_000_000))
    assert caught.value.exit_code == 3
    assert caught.value.hint


def test_a_database_that_may_not_be_written_is_said_in_words(tmp_path: Path) -> None:
    StudyBuilder(tmp_path).store.close()
    store = Store(f"sqlite:///file:{tmp_path}/autotune.db?mode=ro&uri=true")
    assert store.study("demo") == make_study()
    with pytest.raises(EnvironmentFault, match="readonly") as caught:
        store.put_study(make_study(seed=1))
    assert caught.value.exit_code == 3


def test_a_folder_that_cannot_be_made_is_an_environment_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="cannot write"):
        Store(default_url(tmp_path / "file" / "runs"))


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "autotune.db"
    file.write_bytes(b"these are notes of mine, not a database" * 100)
    before = file.read_bytes()
    with pytest.raises(EnvironmentFault, match="not a database"):
        Store(default_url(tmp_path))
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("url", "error"),
    [("nonsense", InputError), ("nosuchdb://host/name", EnvironmentFault)],
)
def test_a_wrong_storage_url_is_said_in_words(url: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        Store(url)


def test_a_path_with_odd_signs_holds_both_kinds_of_tables(tmp_path: Path) -> None:
    folder = tmp_path / "a {b} {{c}} %3F 100% #x? é \"'&="
    store = Store(default_url(folder))
    exercise_optuna(optuna_storage(store.url))
    assert [file.name for file in folder.iterdir()] == ["autotune.db"]
    assert [file.name for file in tmp_path.iterdir()] == [folder.name]


def test_a_password_is_never_shown() -> None:
    with pytest.raises(EnvironmentFault) as caught:
        Store("nosuchdb://me:secret@host/name")
    assert "secret" not in caught.value.message


def test_reading_a_missing_database_creates_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no database"):
        Store.existing(default_url(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "module", "words"),
    [
        ("postgresql+psycopg2://a@127.0.0.1/b", "psycopg2", "pip install psycopg2-binary"),
        ("postgresql+psycopg://a@127.0.0.1/b", "psycopg", "pip install 'psycopg[binary]'"),
    ],
)
def test_the_hint_names_the_driver_that_is_missing(
    url: str, module: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EnvironmentFault) as caught:
        make_engine(make_url(url))
    assert caught.value.hint is not None
    assert words in caught.value.hint
