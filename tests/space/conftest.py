from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from autotune.contract.plan import Topology
from autotune.space.loader import parse_space
from autotune.space.search_space import SearchSpace

HEAD = """\
version: 1
backend: {backend}
workload: {{model: qwen3-tiny, global_batch: 16{workload}}}
"""


@pytest.fixture
def load() -> Callable[..., SearchSpace]:
    """Parse a space from its params (block lines), with the rest filled in.

    Lines 1-3 are the head, line 4 is ``params:``, the first parameter stands on line 5, column 3.
    """

    def build(
        *params: str,
        backend: str = "zero3",
        workload: str = "",
        rest: str = "",
        overrides: Sequence[str] = (),
    ) -> SearchSpace:
        lines = params or ("micro_batch: {choices: [1, 2]}",)
        body = "params:\n" + "".join(f"  {line}\n" for line in lines)
        text = HEAD.format(backend=backend, workload=workload) + body + rest
        return parse_space(text, file="space.yaml", overrides=overrides)

    return build


@pytest.fixture
def two_processes() -> Topology:
    return Topology(processes=2, device="cpu", devices_per_node=2)
