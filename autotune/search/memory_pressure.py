"""Evidence that the kernel killed a process for want of memory."""

from __future__ import annotations

from autotune.contract import hostmemory


def oom_kills() -> int:
    """Return how often the out-of-memory killer has acted so far, here and in our cgroup.

    Compare two readings; a counter that cannot be read counts as zero.
    """
    events = (folder / "memory.events" for folder in hostmemory.cgroup_folders())
    own = next((path for path in events if path.exists()), hostmemory.CGROUP / "memory.events")
    everywhere = hostmemory.statistic(hostmemory.PROC / "vmstat", "oom_kill")
    return everywhere + hostmemory.statistic(own, "oom_kill")
