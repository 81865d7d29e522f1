"""Fill a model that lies on the meta device, for engines that start from a whole copy."""

from __future__ import annotations

import torch
from torch import nn

from autotune.backends.base import RankContext
from autotune.models import quantized
from autotune.models.weights import WeightSource, rebuild_buffers


def fill(module: nn.Module, source: WeightSource, rank: RankContext) -> None:
    """Replace what lies on the meta device by by-name values; tied weights stay one parameter."""
    made: dict[str, nn.Parameter] = {}
    for name, parameter in list(module.named_parameters(remove_duplicate=False)):
        canonical = source.canonical[name]
        if canonical not in made:
            values = source.tensor(name, parameter.shape, device=rank.device).to(parameter.dtype)
            rank.beat()
            if quantized.is_packed(parameter):
                made[canonical] = quantized.pack(parameter, values)
            else:
                made[canonical] = nn.Parameter(values, requires_grad=parameter.requires_grad)
        path, _, short = name.rpartition(".")
        module.get_submodule(path)._parameters[short] = made[canonical]
    fill_buffers(module, rank.device)


def fill_buffers(module: nn.Module, device: torch.device) -> None:
    """Make the buffers anew on ``device``."""
    for owner in module.modules():
        for short, buffer in owner.named_buffers(recurse=False):
            owner._buffers[short] = torch.empty_like(buffer, device=device)
    with torch.no_grad():
        rebuild_buffers(module)
