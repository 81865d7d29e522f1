"""A log that grows too long is cut in its middle, while a rank goes on writing it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.worker import logs


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(logs, "MAX_BYTES", 100)
    monkeypatch.setattr(logs, "KEPT_BYTES", 10)
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"beginning." + b"x" * 100 + b"the end is")
    return path


def test_the_middle_is_cut_and_the_next_line_follows_the_end(log: Path) -> None:
    with log.open("ab") as writer:
        logs.trim(log)
        writer.write(b" here\n")
    expected = b"beginning.\n[autotune: 100 bytes of this log were cut]\nthe end is here\n"
    assert log.read_bytes() == expected


def test_the_end_is_there_at_every_moment(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a reader that looks for the reason of a failure would find none."""
    seen: list[bytes] = []
    truncate = os.ftruncate

    def watched(handle: int, size: int) -> None:
        seen.append(log.read_bytes())
        truncate(handle, size)
        seen.append(log.read_bytes())

    monkeypatch.setattr(logs.os, "ftruncate", watched)
    logs.trim(log)
    assert [content.endswith(b"the end is") for content in seen] == [True, True]


def test_what_is_written_while_the_end_is_copied_is_kept(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite

    def late(handle: int, data: bytes, offset: int) -> int:
        if offset == logs.KEPT_BYTES:
            with log.open("ab") as writer:
                writer.write(b" late")
        return write(handle, data, offset)

    monkeypatch.setattr(logs.os, "pwrite", late)
    logs.trim(log)
    assert log.read_bytes().endswith(b"were cut]\nthe end is late")


def test_a_short_log_stays(log: Path) -> None:
    log.write_bytes(b"short")
    logs.trim(log)
    assert log.read_bytes() == b"short"
