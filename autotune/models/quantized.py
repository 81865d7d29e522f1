"""Weights stored in four bits beside which adapters are trained (QLoRA, Dettmers et al. 2023).

bitsandbytes' layer takes the place of each linear layer of the decoder layers: its weight is
packed as 4-bit NormalFloat in blocks of 64 whose scales are quantised too, and unpacked anew in
each product (``bitsandbytes/nn/modules.py``, ``Linear4bit``, 0.50). Packing changes numbers, so it
is part of the workload.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from autotune.contract.plan import Model
from autotune.models.family import family_of

LAYER: Final[dict[str, Any]] = {"quant_type": "nf4", "compress_statistics": True}
"""bitsandbytes' arguments of a layer, beside its widths and the format that it computes in."""


def replace_linear_layers(module: torch.nn.Module, model: Model, *, compute: torch.dtype) -> None:
    """Let every linear layer of the decoder layers store its weight in four bits, in place.

    Call it on the meta device; :func:`pack` gives each weight its values.
    """
    from bitsandbytes.nn import Linear4bit

    for name in family_of(model.family).linear_layers(model.config):
        layer: Any = module.get_submodule(name)
        packed = Linear4bit(
            layer.in_features,
            layer.out_features,
            bias=layer.bias is not None,
            compute_dtype=compute,
            device="meta",
            **LAYER,
        ).to(compute)
        if layer.bias is not None:
            packed.bias = layer.bias
        parent, _, short = name.rpartition(".")
        setattr(module.get_submodule(parent), short, packed)
    marked: Any = module
    marked.is_loaded_in_4bit = True  # peft asks for it (peft/tuners/lora/model.py)


def is_packed(parameter: torch.nn.Parameter) -> bool:
    """Whether it is the weight of a layer that :func:`replace_linear_layers` made."""
    return hasattr(parameter, "quant_type")


def pack(parameter: Any, values: torch.Tensor) -> torch.nn.Parameter:
    """Return ``values`` as the packed weight that ``parameter`` stands for, where they lie.

    Args:
        parameter: The layer's weight on the meta device.
        values: Of the whole weight, in the format that the layer computes in.
    """
    unpacked = type(parameter)(values, requires_grad=False, module=parameter.module, **LAYER)
    packed: torch.nn.Parameter = unpacked.to(values.device)
    return packed
