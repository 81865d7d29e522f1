from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from study_factory import StudyBuilder, failed, measured

from autotune.store.database import Store
from autotune.store.recorder import StudyRecorder


def as_server_user(*command: str) -> list[str]:
    # The server refuses to run as root.
    return ["runuser", "-u", "postgres", "--", *command] if os.geteuid() == 0 else list(command)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    pytest.importorskip("psycopg2")
    found = [shutil.which("postgres"), *Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    server = next((path for path in found if path), None)
    if server is None:
        pytest.skip("needs a PostgreSQL server")
    programs = Path(server).resolve().parent
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    folder.chmod(0o777)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data, log = str(folder / "data"), str(folder / "log")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
    run = {"check": True, "capture_output": True, "cwd": "/tmp"}
    subprocess.run(
        as_server_user(str(programs / "initdb"), "-D", data, "-A", "trust", "-U", "me"),
        **run,  # type: ignore[call-overload]
    )
    control = as_server_user(str(programs / "pg_ctl"), "-D", data, "-l", log, "-w")
    subprocess.run([*control, "-o", options, "start"], check=True, stdout=subprocess.DEVNULL)
    try:
        yield f"postgresql+psycopg2://me@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=True, capture_output=True)
        shutil.rmtree(folder)


def test_a_server_keeps_the_same_records_beside_optunas(tmp_path: Path, url: str) -> None:
    """BUG-007: exact integers in a server database."""
    study = StudyBuilder(tmp_path)
    study.store.close()
    store = Store(url)
    study.store = store
    study.recorder = StudyRecorder(study.folder, store)
    study.trial(measured(0.8), config={"zero3.reduce_bucket_size": 500_000_003})
    study.trial(measured(0.5), config={"zero3.reduce_bucket_size": 2**63 + 11})
    study.trial(failed("crash", "a log with \x00 and \ud800 in it"))
    study.again(1, measured(0.51))
    study.verdict("faster", 1, ratio=1.6, low=1.5, high=1.7)
    optuna.create_study(storage=url, study_name="demo")
    contents = Store(url).contents("demo", study.folder)
    assert contents == study.recorder.contents()
    assert contents is not None
    values = [trial.header.config.get("zero3.reduce_bucket_size") for trial in contents.trials]
    assert values[:2] == [500_000_003, 2**63 + 11]
