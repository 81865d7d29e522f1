"""Compilers' caches: one for each environment, one writer for each folder."""

from __future__ import annotations

import _ctypes
import json
import subprocess
import sys
from pathlib import Path

from launching import open_bench

from autotune.launchers import caches

HOLD = """
import sys
from pathlib import Path
from autotune.launchers import caches
slot = caches.take(Path(sys.argv[1]), {})
print(slot.folder, flush=True)
sys.stdin.read()
"""


def test_a_variable_that_the_user_set_stays(tmp_path):
    slot = caches.take(tmp_path, {})
    mine = {"TRITON_CACHE_DIR": "/mine", "TORCH_EXTENSIONS_DIR": "/ours"}
    shared, own = slot.for_ranks(mine)
    assert shared == mine
    assert set(own) == {"TORCHINDUCTOR_CACHE_DIR", "TILELANG_CACHE_DIR"}
    assert all(Path(path).is_relative_to(tmp_path) for path in own.values())
    assert slot.for_server(mine)["TRITON_CACHE_DIR"] == "/mine"
    slot.release()


def test_searches_at_the_same_time_have_caches_of_their_own_and_later_ones_share(tmp_path):
    """BUG-037: no folder has two writers, and a killed search lets go of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        theirs = other.stdout.readline().strip()
        ours = caches.take(tmp_path, {})
        assert str(ours.folder) != theirs
        assert ours.folder.parent == Path(theirs).parent
        ours.release()
        other.kill()
        other.wait()
    after = caches.take(tmp_path, {})
    assert str(after.folder) == theirs
    after.release()


def test_another_setting_at_import_is_another_environment(tmp_path):
    plain, other = caches.take(tmp_path, {}), caches.take(tmp_path, {"TORCH_LOGS": "x"})
    assert plain.folder.parent != other.folder.parent
    about = json.loads((other.folder.parent / "fingerprint.json").read_text())
    assert about["read_at_import"] == {"TORCH_LOGS": "x"}
    assert about["packages"]["torch"]
    for slot in (plain, other):
        slot.release()


def test_each_rank_writes_to_folders_of_its_own(bench, monkeypatch):
    for name in caches.locations(Path()):
        monkeypatch.delenv(name, raising=False)
    _, folder = bench.run(["cache_folders"], ["cache_folders"])
    first, second = (json.loads((folder.path / f"caches-{r}.json").read_text()) for r in (0, 1))
    extensions = "TORCH_EXTENSIONS_DIR"  # one rank builds, the others wait for its lock
    assert first[extensions] == second[extensions]
    runs = bench.study.path.parent
    for name in set(first) - {extensions}:
        assert first[name] != second[name], name
        assert Path(first[name]).is_relative_to(runs / ".cache")


def test_the_lock_of_a_killed_build_is_removed_with_a_message(tmp_path, monkeypatch):
    """BUG-037: without it every later trial would wait for a build that nobody finishes."""
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    bench = open_bench(tmp_path / "runs" / "study", warm=False)
    try:
        _, folder = bench.run(["cache_folders"])
        seen = json.loads((folder.path / "caches-0.json").read_text())
        lock = Path(seen["TORCH_EXTENSIONS_DIR"]) / "cpu_adam" / "lock"
        lock.parent.mkdir(parents=True)
        lock.touch()
        running, _ = bench.submit(["sleep", 600])
        assert not lock.exists()
        lock.touch()  # a build of the trial that runs: it has an owner
        status, _ = bench.run(["exit", 0])
        assert lock.exists()
        bench.launcher.cancel(running)
        status, _ = bench.run(["exit", 0])
        assert not lock.exists()
        assert any(str(lock) in note for note in status.notes)
    finally:
        bench.launcher.close()


def test_a_library_that_a_killed_compiler_left_is_removed_with_a_message(tmp_path):
    """Inductor would take it for a whole one: every later trial with the same layer would crash."""
    slot = caches.take(tmp_path, {})
    whole, begun, empty = (
        slot.folder / f"inductor/rank-{rank}/r4/layer.main.so" for rank in range(3)
    )
    for path in (whole, begun, empty):
        path.parent.mkdir(parents=True)
    real = Path(_ctypes.__file__).read_bytes()
    whole.write_bytes(real)
    begun.write_bytes(real[: len(real) // 2])
    empty.touch()
    notes = slot.remove_leftovers()
    assert [whole.exists(), begun.exists(), empty.exists()] == [True, False, False]
    assert [str(path) in note for path, note in zip((begun, empty), notes, strict=True)] == [
        True, True,
    ]  # fmt: skip
    slot.release()
