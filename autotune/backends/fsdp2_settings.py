"""FSDP2's settings beside ``fully_shard``'s arguments: set by the module's own methods.

Setters of ``FSDPModule`` differ in reach: some are for the module alone and are called on every
unit. The order matters: buffers come from the process group that is there when they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from autotune.backends import fsdp2_state as state
from autotune.backends.base import IncompatibleConfigError
from autotune.backends.fsdp2_state import Unit

if TYPE_CHECKING:
    from torch import nn

_RECURSIVE: Final = {
    "separate_reduce_scatter_group": ("set_separate_reduce_scatter_group", False),
    "reduce_scatter_input_buffers": ("set_reduce_scatter_max_input_buffers", 1),
}
_OF_EACH: Final = {
    "force_sum_reduction": ("set_force_sum_reduction_for_comms", False),
    "allocate_from_process_group": ("set_allocate_memory_from_process_group_for_comm", False),
}
"""Knob to the method that sets it and the value that torch has without it."""


def apply(module: nn.Module, units: Sequence[Unit], knobs: Mapping[str, Any]) -> None:
    """Set what is not at torch's default.

    Args:
        module: The sharded root.
        units: Units below it, in the order of forward; the embedding's first where it is one.
        knobs: Every knob's value.

    Raises:
        IncompatibleConfigError: The installed torch has no such method.
    """
    heads = [unit[0] for unit in units]
    for key, (method, default) in _RECURSIVE.items():
        if knobs[key] != default:
            _call(module, method, knobs[key])
    for key, (method, default) in _OF_EACH.items():
        if knobs[key] != default:
            for head in (module, *heads):
                _call(head, method, knobs[key])
    if knobs["wrap_embeddings"] and not knobs["unshard_in_backward"]:
        _call(heads[0], "set_unshard_in_backward", False)
    if knobs["keep_last_unit"]:
        _call(heads[-1], "set_reshard_after_forward", False, recurse=False)


def before_backward(module: nn.Module, knobs: Mapping[str, Any], *, last: bool) -> None:
    """Prepare all units for the backward of a micro-step."""
    if knobs["gradient_sync"] == "last":
        _call(module, "set_requires_gradient_sync", last)
    elif knobs["gradient_sync"] == "scatter":
        _call(module, "set_requires_all_reduce", last)
    if not knobs["reshard_after_backward"]:
        _call(module, "set_reshard_after_backward", last)


def read_communication(groups: Sequence[Any]) -> dict[str, Any]:
    """Bare knob name to what the live groups hold of communication."""
    return {
        "replicate": state.copies(groups),
        "force_sum_reduction": state.flag(groups, "force_sum_reduction_for_comms", False),
        "allocate_from_process_group": state.allocates_from_group(groups),
        "separate_reduce_scatter_group": state.reduces_apart(groups),
        "reduce_scatter_input_buffers": state.flag(groups, "reduce_scatter_max_input_buffers", 1),
    }


def read_micro_step(groups: Sequence[Any]) -> dict[str, Any]:
    """Bare knob name to what the groups hold, prepared for a micro-step that is not the last."""
    reduces = state.flag(groups, "reduce_grads", True)
    sums = state.flag(groups, "all_reduce_grads", True)
    ways = {(False, False): "last", (True, True): "each", (True, False): "scatter"}
    return {
        "gradient_sync": ways.get((reduces, sums), f"reduce {reduces}, all-reduce {sums}"),
        "reshard_after_backward": state.flag(groups, "reshard_after_backward", True),
    }


def _call(module: nn.Module, method: str, *arguments: Any, **named: Any) -> None:
    setter = getattr(module, method, None)
    if setter is None:
        import torch

        raise IncompatibleConfigError(f"torch {torch.__version__} has no FSDPModule.{method}")
    setter(*arguments, **named)
