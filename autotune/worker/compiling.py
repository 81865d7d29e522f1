"""Has torch's compiler run in this process? What it takes is no property of a steady step."""

from __future__ import annotations

import sys


def graphs() -> int:
    """Return how many graphs ``torch.compile`` has made so far; 0 while nothing has imported it.

    Every compilation and recompilation counts one or more (``torch/_dynamo/output_graph.py``,
    ``counters["stats"]["unique_graphs"]``).
    """
    module = sys.modules.get("torch._dynamo.utils")
    counters = getattr(module, "counters", None)
    return 0 if counters is None else int(counters["stats"]["unique_graphs"])
