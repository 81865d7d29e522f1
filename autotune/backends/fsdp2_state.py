"""What a sharded module really holds: read from FSDP2's own state, in torch 2.11 and 2.13.

What a version has no word for is at its default there: it cannot have been set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch import nn

Unit: TypeAlias = "list[nn.Module]"
"""Modules whose weights are gathered in one collective, in the order of forward."""


def state_of(module: nn.Module) -> Any:
    """FSDP's state of a module, ``None`` where it is no unit of its own."""
    from torch.distributed.fsdp._fully_shard._fsdp_state import _get_module_fsdp_state

    return _get_module_fsdp_state(module)


def groups_of(module: nn.Module) -> list[Any]:
    """The sets of weights that a unit gathers in one collective each."""
    state = state_of(module)
    if hasattr(state, "_fsdp_param_groups"):  # torch 2.12 and later
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []


def reshard_of(group: Any) -> bool | int:
    """What happens to a group's weights after forward."""
    after = group.post_forward_mesh_info
    if after is None:
        return False
    if after == group.mesh_info:
        return True
    return int(after.shard_mesh_size)


def reshard(units: Sequence[Unit]) -> tuple[bool | int | None, bool]:
    """Return what all units below the root agree on, and whether the last one keeps its weights.

    ``None`` where they agree on nothing.
    """
    found = [{reshard_of(group) for group in groups_of(unit[0])} for unit in units]
    rest, last = found[:-1] or found, found[-1]
    agreed = set().union(*rest)
    if len(agreed) != 1 or len(last) != 1:
        return None, False
    keeps = last == {False} and agreed != {False}
    if not keeps and last != agreed:
        return None, False
    return agreed.pop(), keeps


def backward_depth(units: Sequence[Unit]) -> int:
    """How far backward gathers ahead."""
    states = [state_of(unit[0]) for unit in units]
    lists = [state._states_to_backward_prefetch for state in states]
    if any(targets == [state] for state, targets in zip(states, lists, strict=True)):
        return 0
    return max(1, *(len(targets) for targets in lists))


def forward_depth(modules: Iterable[nn.Module]) -> int:
    """How far anything looks ahead: with a single unit only the root does."""
    return max(len(state_of(module)._states_to_forward_prefetch) for module in modules)


def copies(groups: Sequence[Any]) -> Any:
    """Over how many processes the shards are replicated."""
    return agreed(int(getattr(one.mesh_info, "replicate_mesh_size", None) or 1) for one in groups)


def allocates_from_group(groups: Sequence[Any]) -> Any:
    """Whether the buffers of gathers and reductions come from the process group."""
    names = [
        type(comm).__name__.startswith("ProcessGroupAlloc")
        for one in groups
        for comm in (one._all_gather_comm, one._reduce_scatter_comm)
    ]
    return agreed(names)


def flag(groups: Sequence[Any], name: str, default: Any) -> Any:
    """What all groups hold under ``name``."""
    return agreed(getattr(one, name, default) for one in groups)


def reduces_apart(groups: Sequence[Any]) -> Any:
    """Whether reductions have a process group of their own."""
    return agreed(
        getattr(one.mesh_info, "reduce_scatter_process_group", None) is not None for one in groups
    )


def agreed(values: Iterable[Any]) -> Any:
    """The one value that all have; a text where they differ."""
    found = list(values)
    return found[0] if all(one == found[0] for one in found) else "not the same in all units"
