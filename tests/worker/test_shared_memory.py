"""Segments that killed ranks left, and those that are none of our business."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.worker import sharedmemory

MAP = """
import mmap, os, sys
handle = os.open(sys.argv[1], os.O_RDWR)
segment = mmap.mmap(handle, 4096)
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "shm"
    path.mkdir()
    return path


def make(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(b"\0" * mmap.PAGESIZE)
    return path


def test_what_a_killed_rank_left_is_given_back(folder: Path) -> None:
    since = time.time() - 1.0
    torch, nccl = make(folder, "torch_4711_123_0"), make(folder, "nccl-a1B2c3")
    other = make(folder, "torch_4712_123_0")
    foreign = make(folder, "sem.someone")
    gone = sharedmemory.give_back([4711], since=since, folder=folder)
    assert gone == [nccl.name, torch.name]
    assert sorted(folder.iterdir()) == [foreign, other]


def test_an_older_segment_is_not_touched(folder: Path) -> None:
    kept = make(folder, "nccl-a1B2c3")
    assert sharedmemory.give_back([1], since=time.time() + 60, folder=folder) == []
    assert kept.exists()


def test_a_segment_that_another_program_maps_is_not_touched(folder: Path) -> None:
    since = time.time() - 1.0
    kept = make(folder, "nccl-a1B2c3")
    with subprocess.Popen(
        [sys.executable, "-c", MAP, str(kept)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {},
        text=True,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert sharedmemory.give_back([1], since=since, folder=folder) == []
        assert kept.exists()
        other.kill()
    assert sharedmemory.give_back([1], since=since, folder=folder) == [kept.name]
