"""What commands print: one JSON document on stdout, notes on stderr."""

from __future__ import annotations

import json
import sys
from typing import Any


def print_json(data: Any) -> None:
    """Print one JSON document and nothing else on stdout."""
    sys.stdout.write(json.dumps(data, indent=1, allow_nan=False) + "\n")


def note(text: str) -> None:
    """Tell something beside the result."""
    print(text, file=sys.stderr)
