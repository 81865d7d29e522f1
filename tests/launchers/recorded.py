"""The table of a tiny grid that is kept with the benchmarks, and its grid."""

from __future__ import annotations

from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
GRID = BENCHMARKS / "tables" / "qwen3-tiny-fsdp2.yaml"
TABLE = BENCHMARKS / "results" / "tables" / "qwen3-tiny-fsdp2.jsonl.gz"
