"""Experts under ZeRO-3: said before the first launch where they may hang.

Stage 3 gathers a module's weights when it runs. Which experts run differs between ranks and
steps, and a gather that not all ranks take part in waits for ever; so a family names the modules
that are gathered as a whole, by class.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path
from typing import Final

from autotune.contract.plan import Workload
from autotune.models.family import family_of
from autotune.space.search_space import SearchSpace

_STAGE_3: Final = ("zero3", "deepspeed")
_COUNTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
"""Fields of a model's configuration that count experts."""


def unknown_experts(space: SearchSpace, workload: Workload) -> str | None:
    """Return what to say of experts that ZeRO-3 would gather one by one; ``None``: nothing."""
    if not set(_STAGE_3) & set(space.backends):
        return None
    if not any(workload.model.config.get(name) for name in _COUNTS):
        return None
    name = workload.model.family
    classes = family_of(name).leaf_classes
    if not classes:
        why = f"the family {name} names no class of experts"
    else:
        absent = [one for one in classes if one not in _defined(name)]
        if not absent:
            return None
        version = importlib.metadata.version("transformers")
        why = f"transformers {version} has no class {', '.join(absent)} for {name}"
    return (
        f"{why}: ZeRO-3 gathers its experts one by one, and may hang where ranks need different "
        "ones; such a trial ends as hang"
    )


def _defined(family: str) -> frozenset[str]:
    """Names of the classes in transformers' file of a family, read without loading it."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return frozenset()
    path = Path(spec.origin).parent / "models" / family / f"modeling_{family}.py"
    try:
        return frozenset(re.findall(r"^class (\w+)", path.read_text("utf-8"), re.MULTILINE))
    except OSError:
        return frozenset()
