"""A coordinator for tests that kill it: two trials, then it waits for a signal."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ["PYTHONPATH"] = os.pathsep.join(
    part for part in (str(HERE), os.environ.get("PYTHONPATH")) if part
)

from launching import (  # noqa: E402
    is_running,
    open_bench,
    read_pid,
    wait_for,
)


def main() -> int:
    # A suite that runs in the background of a script inherits an ignored Ctrl-C, and so would this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    bench = open_bench(Path(sys.argv[1]) / "study", warm=False)
    _, first = bench.submit(["ignore_term"], ["sleep", 600])
    _, second = bench.submit(["daemons", ["sleep", 600]], ["sleep", 600])
    files = [folder.path / f"pid-{rank}" for folder in (first, second) for rank in (0, 1)]
    files.append(second.path / "daemon-forked")
    pids = [wait_for(lambda f=f: read_pid(f), str(f)) for f in files]
    pids.insert(0, bench.launcher.ready.pid)
    try:
        print(*pids, flush=True)  # who reads this may interrupt at once
        time.sleep(120)
    except KeyboardInterrupt:
        alive = sum(is_running(pid) for pid in pids)
        print(f"interrupted, still running: {alive} of {len(pids)}", flush=True)
        bench.launcher.close()
        return 130
    return 1


if __name__ == "__main__":
    sys.exit(main())
