from __future__ import annotations

from pathlib import Path

from autotune.contract import hostmemory


def _proc(path: Path, *, available_kib: int, cgroup: str) -> Path:
    (path / "self").mkdir(parents=True)
    (path / "meminfo").write_text(f"MemTotal: 2000 kB\nMemAvailable: {available_kib} kB\n")
    (path / "self/cgroup").write_text(cgroup)
    return path


def test_available_memory_without_a_limit(tmp_path: Path) -> None:
    proc = _proc(tmp_path / "proc", available_kib=1000, cgroup="0::/\n")
    assert hostmemory.available_bytes(proc, tmp_path / "none") == 1_024_000
    assert hostmemory.total_bytes(proc, tmp_path / "none") == 2_048_000


def test_the_tightest_cgroup_above_counts(tmp_path: Path) -> None:
    proc = _proc(tmp_path / "proc", available_kib=1000, cgroup="0::/job/step\n")
    root = tmp_path / "cgroup"
    for folder, limit, used, cache in [("job", "600000", 300000, 50000), ("job/step", "max", 1, 0)]:
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "memory.max").write_text(f"{limit}\n")
        (root / folder / "memory.current").write_text(f"{used}\n")
        (root / folder / "memory.stat").write_text(f"anon 7\ninactive_file {cache}\n")
    assert hostmemory.available_bytes(proc, root) == 350_000
    assert hostmemory.total_bytes(proc, root) == 600_000


def test_version_1_cgroups_count_too(tmp_path: Path) -> None:
    proc = _proc(tmp_path / "proc", available_kib=1000, cgroup="4:memory:/a\n2:cpu:/\n")
    folder = tmp_path / "cgroup/memory/a"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("500000\n")
    (folder / "memory.usage_in_bytes").write_text("400000\n")
    (folder / "memory.stat").write_text("total_inactive_file 10000\n")
    assert hostmemory.available_bytes(proc, tmp_path / "cgroup") == 110_000
    assert hostmemory.total_bytes(proc, tmp_path / "cgroup") == 500_000
