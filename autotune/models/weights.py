"""Weights that do not depend on backend, world size or order: each one comes from its name.

A torch seed alone gives other weights at other world sizes, because ranks draw other tensors in
another order. Here each parameter has a generator of its own, seeded from its name.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from autotune.contract.plan import Model
from autotune.models import lora
from autotune.models.checkpoint import Checkpoint, ParameterShape
from autotune.models.family import family_of
from autotune.models.starts import Start


@dataclasses.dataclass(frozen=True)
class WeightSource:
    """The start values of one model's parameters."""

    seed: int
    std: float
    """Standard deviation of drawn weights (``initializer_range``)."""
    starts: Mapping[str, Start]
    """Parameter name as without adapters, tied duplicates included, to how it starts."""
    zero_rows: Mapping[str, int]
    """Embedding name to the row of its padding token, which starts at zero."""
    canonical: Mapping[str, str]
    """Parameter name to the one name that stands for all that are tied to it, and in a model with
    adapters for the same parameter without them."""
    stored: Mapping[str, ParameterShape]
    """Parameter name, tied duplicates included, to what a checkpoint may hold for it."""
    checkpoint: Checkpoint | None = None

    @classmethod
    def of(cls, model: Model, module: torch.nn.Module) -> WeightSource:
        """Read names, kinds and ties from ``module``: as the family built it, or wrapped in place.

        Adapters must be attached already: their parameters start too. Ties are taken from the
        library's own record as well as from shared parameters:
        ``to_empty`` gives every module a parameter of its own.
        """
        first_name: dict[int, str] = {}
        canonical: dict[str, str] = {}
        starts: dict[str, Start] = {}
        zero_rows: dict[str, int] = {}
        family = family_of(model.family)
        for name, parameter in module.named_parameters(remove_duplicate=False):
            plain = lora.base_name(name)
            canonical[name] = first_name.setdefault(id(parameter), plain)
            owner = module.get_submodule(name.rpartition(".")[0])
            starts[plain] = _start(name, owner, family.starts)
            padding = getattr(owner, "padding_idx", None)
            if padding is not None:
                zero_rows[plain] = padding
        for target, source in (getattr(module, "all_tied_weights_keys", None) or {}).items():
            canonical[target] = canonical[source]
        return cls(
            seed=model.seed,
            std=float(model.config["initializer_range"]),
            starts=starts,
            zero_rows=zero_rows,
            canonical=canonical,
            stored={
                name: parameter
                for parameter in family.parameters(model.config)
                for name in parameter.names
            },
            checkpoint=Checkpoint.open(Path(model.weights)) if model.weights else None,
        )

    def tensor(
        self, name: str, shape: tuple[int, ...] | torch.Size, *, device: torch.device | str
    ) -> torch.Tensor:
        """Return the whole parameter ``name`` in float32, with values that bf16 can hold.

        Values that bf16 cannot hold would be rounded by one engine and kept by another, and the
        two would not start from the same weights. So real weights are rounded as well.

        The generator is that of ``device``: values are equal on equal kinds of device.

        Raises:
            KeyError: The model has no such parameter.
            InputError: The checkpoint lacks it or has it in another shape.
        """
        if name not in self.canonical:
            raise KeyError(f"the model has no parameter {name!r}")
        canonical = self.canonical[name]
        device = torch.device(device)
        if self.checkpoint is not None and not lora.is_adapter(canonical):
            value = self.checkpoint.read(self.stored[canonical]).to(device)
            return _rounded(value.to(torch.float32))
        start = self.starts[canonical]
        if start in ("ones", "zeros"):
            fill = torch.ones if start == "ones" else torch.zeros
            return fill(tuple(shape), dtype=torch.float32, device=device)
        value = torch.empty(tuple(shape), dtype=torch.float32, device=device)
        generator = _generator(canonical, self.seed, device)
        if start == "adapter":
            bound = float(shape[1]) ** -0.5
            return _rounded(value.uniform_(-bound, bound, generator=generator))
        if start == "log_uniform":
            return _rounded(value.uniform_(0.01, 16.0, generator=generator).log_())
        value.normal_(0.0, self.std, generator=generator)
        if canonical in self.zero_rows:
            value[self.zero_rows[canonical]] = 0.0
        return _rounded(value)


def rebuild_buffers(module: torch.nn.Module) -> None:
    """Recompute the buffers that no checkpoint holds, after ``to_empty`` left them undefined.

    They are the inverse frequencies of rotary embeddings
    (``transformers/modeling_utils.py``, ``PreTrainedModel._init_weights``).

    Raises:
        NotImplementedError: The model has a buffer of another kind.
    """
    for path, owner in module.named_modules():
        buffers = dict(owner.named_buffers(recurse=False))
        if not buffers:
            continue
        if set(buffers) != {"inv_freq", "original_inv_freq"}:
            raise NotImplementedError(f"cannot rebuild the buffers {sorted(buffers)} of {path!r}")
        value = _inverse_frequencies(owner)
        for buffer in buffers.values():
            buffer.copy_(value)


def _inverse_frequencies(rotary: Any) -> torch.Tensor:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if rotary.rope_type == "default":
        value, _ = rotary.compute_default_rope_parameters(rotary.config)
    else:
        value, _ = ROPE_INIT_FUNCTIONS[rotary.rope_type](rotary.config)
    assert isinstance(value, torch.Tensor)
    return value


def _start(name: str, owner: torch.nn.Module, special: Mapping[str, Start]) -> Start:
    """How the library starts a parameter (``PreTrainedModel._init_weights``), or peft an adapter.

    peft's default is a drawn first matrix and a second one of zeros, so that the model begins as
    it is without adapters (``peft/tuners/lora/layer.py``, ``reset_lora_parameters``).
    """
    if lora.is_adapter(name):
        return "adapter" if ".lora_A." in name else "zeros"
    leaf = name.rpartition(".")[2]
    for key in (leaf, *(f"{cls.__name__}.{leaf}" for cls in type(owner).__mro__)):
        if key in special:
            return special[key]
    if name.endswith("bias"):
        return "zeros"
    return "ones" if "Norm" in type(owner).__name__ else "normal"


def _generator(name: str, seed: int, device: torch.device) -> torch.Generator:
    hashed = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    # The sign bit stays clear: some generators take signed seeds only.
    return torch.Generator(device=device).manual_seed(int.from_bytes(hashed[:8], "big") >> 1)


def _rounded(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.bfloat16).to(torch.float32)
