"""Configurations worth trying before any model exists: they are the sampler's start-up trials."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from autotune.backends.base import backend_of
from autotune.contract.plan import CommandWorkload, Workload
from autotune.search.earlier import EarlierBest
from autotune.space.model import Config
from autotune.space.search_space import SearchSpace


@dataclasses.dataclass(frozen=True, kw_only=True)
class Anchor:
    """A known configuration, moved to the nearest point of the space."""

    name: str
    """``engine_defaults``, ``hf_auto``, …, with the backend's name where there are several;
    ``earlier:STUDY``."""
    assignment: dict[str, Any]
    config: Config


def find_anchors(
    space: SearchSpace, workload: CommandWorkload | Workload, earlier: Sequence[EarlierBest] = ()
) -> tuple[Anchor, ...]:
    """Return the anchors inside the space, each canonical key once and never the baseline's.

    The engines' raw defaults come first, then what each backend offers, in turns, with the
    baseline's values of workload knobs; then the bests of ``earlier`` studies, whole. Fixed knobs
    always hold, and an anchor that breaks a constraint is left out.
    """
    seen = {space.baseline_config().key}
    found: list[Anchor] = []
    for name, backend, values in (*_known(space, workload), *_found(space, earlier)):
        assignment = space.project(backend, values)
        config = space.resolve(assignment)
        if config.key in seen or space.violated(config) is not None:
            continue
        seen.add(config.key)
        found.append(Anchor(name=name, assignment=assignment, config=config))
    return tuple(found)


def _known(
    space: SearchSpace, workload: CommandWorkload | Workload
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The engines take turns, so that a short search has tried each of them."""
    each = [list(_of_backend(space, backend, workload)) for backend in space.backends]
    for turn in itertools.zip_longest(*each):
        yield from (one for one in turn if one is not None)


def _of_backend(
    space: SearchSpace, backend: str, workload: CommandWorkload | Workload
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    defaults = space.default_config(backend).values
    suffix = f"@{backend}" if len(space.backends) > 1 else ""
    yield f"engine_defaults{suffix}", backend, dict(defaults)
    if isinstance(workload, CommandWorkload):
        return  # the others follow from the model, and only the program knows that
    for name, values in backend_of(backend).anchors(workload).items():
        yield f"{name}{suffix}", backend, {**defaults, **values}


def _found(
    space: SearchSpace, earlier: Sequence[EarlierBest]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Bests of earlier studies under an engine of this space."""
    for one in earlier:
        if one.backend in space.backends:
            defaults = space.default_config(one.backend).values
            yield f"earlier:{one.study}", one.backend, {**defaults, **one.values}
