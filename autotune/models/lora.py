"""Low-rank adapters (LoRA, Hu et al. 2021) by peft: which layers get one, and how they start.

peft's layer takes the place of the linear layer, which it keeps as ``base_layer``; the adapter's
matrices are linear layers of their own, ``lora_A.default`` and ``lora_B.default``
(``peft/tuners/lora/layer.py``, 0.21). Only they are trained: everything else is frozen and held
in the format that it is computed in, for no optimizer has a copy of it.

The functions but :func:`attach` work without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from autotune.contract.plan import Lora, Workload
from autotune.errors import InputError
from autotune.models.family import ModelFamily

if TYPE_CHECKING:
    import torch

_NAME: Final = "default"
"""peft's own name of a model's first adapter."""


def resolve(
    family: ModelFamily,
    config: Mapping[str, Any],
    *,
    rank: int,
    alpha: float,
    targets: tuple[str, ...] | None,
) -> Lora:
    """Return the adapters that a workload states, for its model.

    Args:
        family: The model's family.
        config: A completed configuration.
        rank: Width of each adapter.
        alpha: Scale of each adapter's output, times ``rank``.
        targets: Last parts of layers' names; ``None`` for all linear layers.

    Raises:
        InputError: A name is no linear layer of the model's.
    """
    layers = family.linear_layers(config)
    known = sorted({name.rpartition(".")[2] for name in layers})
    if targets is None:
        targets = tuple(known)
    for target in targets:
        if not _chosen(layers, (target,)):
            raise InputError(
                f"{target} is the name of no linear layer that adapters may stand by",
                hint=f"known: {', '.join(known)}",
            )
    chosen = _chosen(layers, targets)
    return Lora(
        rank=rank,
        alpha=alpha,
        targets=targets,
        num_parameters=sum(rank * (rows + columns) for rows, columns in chosen.values()),
    )


def _chosen(
    layers: Mapping[str, tuple[int, int]], targets: tuple[str, ...]
) -> dict[str, tuple[int, int]]:
    """The layers that peft finds for ``targets``: by the whole name or by its last parts."""
    ends = tuple(f".{target}" for target in targets)
    return {name: shape for name, shape in layers.items() if name in targets or name.endswith(ends)}


def peft_arguments(lora: Lora) -> dict[str, Any]:
    """Return the arguments of ``peft.LoraConfig``, each that decides what is computed."""
    return {
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha.is_integer() else lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(lora.targets),
        "bias": "none",
    }


def attach(module: torch.nn.Module, workload: Workload, *, trained: torch.dtype) -> None:
    """Freeze the model's weights and add the adapters, in place; nothing where there are none.

    Call it on the meta device, before anything is wrapped or named.

    Args:
        module: The library's model.
        workload: Says which adapters.
        trained: Format of the adapters' weights.
    """
    if workload.lora is None:
        return
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(**peft_arguments(workload.lora))
    inject_adapter_in_model(config, module, adapter_name=_NAME, low_cpu_mem_usage=True)
    for name, parameter in module.named_parameters():
        if is_adapter(name):
            parameter.data = parameter.data.to(trained)


def adapters(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the name of each layer that has an adapter, with the adapter's second matrix.

    What that matrix returns is what the adapter adds to the layer's output.
    """
    end = f".lora_B.{_NAME}"
    return {
        name.removesuffix(end): part for name, part in module.named_modules() if name.endswith(end)
    }


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name belongs to an adapter."""
    return ".lora_A." in name or ".lora_B." in name


def base_name(name: str) -> str:
    """A parameter's name as it is in the model without adapters."""
    return name.replace(".base_layer.", ".")
