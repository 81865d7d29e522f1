from __future__ import annotations

import os
import pickle

import pytest

from autotune.contract import smallfile
from autotune.contract.folder import AttemptFolder
from autotune.errors import RecordError


class _Payload:
    def __init__(self, marker):
        self._marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self._marker),)


def test_a_pickle_in_place_of_a_rank_record_is_refused_and_not_run(tmp_path):
    """BUG-068: results are plain data, checked against a schema."""
    marker = tmp_path / "marker"
    payload = pickle.dumps(_Payload(marker))
    folder = AttemptFolder(tmp_path)
    folder.rank_file(0).write_bytes(payload)
    with pytest.raises(RecordError, match="not a JSON record"):
        folder.read_rank(0)
    assert smallfile.read_object(folder.rank_file(0), 1 << 20) is None
    assert not marker.exists()
    pickle.loads(payload)
    assert marker.exists()  # the payload was live


@pytest.mark.parametrize(
    "content", [b"", b"null", b"[]", b'{"phase": 3}', b'{"phase": "lunch"}', b"x" * 5000]
)
def test_a_heartbeat_that_says_nothing_means_launch(tmp_path, content):
    (tmp_path / "h").write_bytes(content)
    assert smallfile.read_phase(tmp_path / "h") == "launch"


def test_a_heartbeat_names_its_phase(tmp_path):
    (tmp_path / "h").write_text('{"phase": "warmup", "at": 1.0, "iteration": 3}')
    assert smallfile.read_phase(tmp_path / "h") == "warmup"
    (tmp_path / "link").symlink_to(tmp_path / "h")
    assert smallfile.read_phase(tmp_path / "link") == "launch"


def test_the_end_of_a_log_is_text(tmp_path):
    (tmp_path / "log").write_bytes(b"first\nlast caf\xe9\n")
    assert smallfile.read_end(tmp_path / "log", 10) == "last caf\ufffd\n"
    assert smallfile.read_end(tmp_path / "log", 1000) == "first\nlast caf\ufffd\n"


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "nothing"])
def test_what_lies_in_place_of_a_log_is_not_waited_for(tmp_path, kind):
    """A reader that waits for a FIFO's writer, or for a device's end, would never come back."""
    path = tmp_path / "log"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    assert smallfile.read_end(path, 1000) == ""
    assert smallfile.read_small(path, 1000) is None
