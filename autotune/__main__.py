"""``python -m autotune``: the same program as ``autotune``, also from a plain checkout."""

from __future__ import annotations

import sys

from autotune.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
