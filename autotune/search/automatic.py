"""What ``auto`` stands for under ``fixed`` and ``baseline``: concrete before the first launch."""

from __future__ import annotations

from autotune.backends.base import backend_of
from autotune.contract.plan import Workload
from autotune.models.hidden_size import OF_FAMILY, hidden_size, missing
from autotune.space.search_space import SearchSpace


def resolve_auto(space: SearchSpace, workload: Workload) -> tuple[SearchSpace, tuple[str, ...]]:
    """Return ``space`` without ``auto``, and a note for each value that it stood for.

    Raises:
        SpaceError: The model's configuration does not say what a rule needs.
    """
    notes: list[str] = []
    values: dict[str, int] = {}
    for name in space.unresolved:
        owner, _, short = name.partition(".")
        with space.place_of_value(name).blamed():
            values[name] = backend_of(owner).auto(workload)[name]
            field = workload.model.hidden_size_from
            if field == OF_FAMILY:
                # The library would build its own width; a rule on it would be one guess on another.
                raise missing()
            size, _ = hidden_size(workload.model.config)
        notes.append(
            f"{short}: auto is {values[name]:,} ({space.knobs[name].auto} for {field} {size:,})"
        )
    return space.with_auto(values), tuple(notes)
