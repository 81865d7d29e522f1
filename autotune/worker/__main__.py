"""``python -m autotune.worker --folder F --rank R``: one rank in a process of its own.

The fork server calls :func:`autotune.worker.session.run_rank` directly; this is the cold way to
the same function.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def main() -> int:
    """Run the rank and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m autotune.worker", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="folder with plan.json")
    parser.add_argument("--rank", type=int, required=True)
    arguments = parser.parse_args()
    from autotune.worker.session import run_rank

    return run_rank(arguments.folder, arguments.rank)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # As in a forked rank: no interpreter shutdown, which could wait for a peer or a thread.
    os._exit(code)
