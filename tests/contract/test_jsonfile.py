import errno
import json
import os
import pickle
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.contract import jsonfile
from autotune.errors import EnvironmentFault, RecordError

ROOT = Path(__file__).resolve().parents[2]


def test_equal_data_has_one_text_and_one_digest():
    assert jsonfile.canonical({"b": [1, 2.5, None], "a": "é"}) == '{"a":"\\u00e9","b":[1,2.5,null]}'
    assert jsonfile.digest({"a": 1, "b": 2}) == jsonfile.digest({"b": 2, "a": 1})
    assert jsonfile.digest({"a": 1}) != jsonfile.digest({"a": True})


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "deep" / "er" / "x.json"
    jsonfile.write_json(path, {"a": 1})
    jsonfile.write_json(path, {"a": 2})
    assert jsonfile.read_json(path) == {"a": 2}
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]


def test_the_umask_decides_who_may_read(tmp_path):
    before = os.umask(0o022)
    try:
        jsonfile.write_json(tmp_path / "x.json", {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x.json").stat().st_mode) == 0o644


def test_a_writer_killed_in_mid_write_leaves_the_old_file(tmp_path):
    """The process dies by SIGKILL after the new text is written, before it is in place."""
    path = tmp_path / "x.json"
    jsonfile.write_json(path, {"whole": "old"})
    code = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from autotune.contract import jsonfile\n"
        "os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)\n"
        "jsonfile.write_json(Path(sys.argv[1]), {'whole': 'new'})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == -signal.SIGKILL
    assert jsonfile.read_json(path) == {"whole": "old"}


def test_an_interrupt_leaves_no_temporary_file(tmp_path, monkeypatch):
    def interrupt(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        jsonfile.write_json(tmp_path / "x.json", {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_the_environments_fault_and_keeps_the_old_file(
    number, tmp_path, monkeypatch
):
    path = tmp_path / "x.json"
    jsonfile.write_json(path, {"a": 1})

    def full(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFault) as caught:
        jsonfile.write_json(path, {"a": 2})
    assert caught.value.message == f"no space left on the disk that holds {path}"
    assert "--runs" in caught.value.hint
    assert caught.value.exit_code == 3
    assert jsonfile.read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_folder_that_cannot_be_made_is_the_environments_fault(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="cannot write .*x.json") as caught:
        jsonfile.write_json(tmp_path / "file" / "x.json", {})
    assert "--runs" in caught.value.hint


def test_a_pickle_in_place_of_a_record_is_refused_unexecuted(tmp_path):
    """BUG-068: no marker file appears."""
    marker = tmp_path / "marker"

    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(marker),))

    path = tmp_path / "outcome.json"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps(Bomb(), protocol=protocol))
        with pytest.raises(RecordError, match="outcome.json: not a JSON record"):
            jsonfile.read_json(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"NaN", b'{"a": Infinity}', b'{"a": 1e999}', b"\xff\xfe", b'{"a": 1} extra',
     b'{"a": 1, "b": {"c": 1, "c": 2}}', b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_json_record_is_refused_with_the_files_name(content, tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(RecordError) as caught:
        jsonfile.read_json(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_exact_integers_survive(tmp_path):
    path = tmp_path / "x.json"
    jsonfile.write_json(path, {"n": sys.maxsize})
    assert jsonfile.read_json(path)["n"] == 9223372036854775807
    assert json.loads(path.read_text())["n"] == 2**63 - 1


def test_an_oversized_file_is_refused_unread(tmp_path):
    path = tmp_path / "x.json"
    with path.open("wb") as file:
        file.truncate(jsonfile.MAX_BYTES + 1)
    with pytest.raises(RecordError, match="more than any record of ours"):
        jsonfile.read_json(path)


def test_a_pipe_or_folder_in_place_of_a_record_is_refused_and_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "plan.json")
    (tmp_path / "folder.json").mkdir()
    for name in ("plan.json", "folder.json"):
        with pytest.raises(RecordError, match="not a plain file"):
            jsonfile.read_json(tmp_path / name)
