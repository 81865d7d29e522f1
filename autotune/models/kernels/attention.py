"""Full attention: which function of transformers' ``AttentionInterface`` the layers look up.

Sample boundaries of a packed row reach each of them (transformers 5.17 and 5.24):

* ``sdpa`` and ``flex_attention`` by a mask that ``create_causal_mask`` makes from position ids
  that restart (``masking_utils.py``, ``find_packed_sequence_indices``): dense for ``sdpa``, of
  blocks for ``flex_attention``;
* ``flash_attention_2`` and ``varlen`` by cumulative lengths, which the batch has or which follow
  from the position ids (``modeling_flash_attention_utils.py``, ``prepare_fa_kwargs_from_...``).

``varlen`` is ``torch.nn.attention.varlen``, which transformers does not know: it is registered
here. A name without a mask function gets the two-dimensional mask as it is.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.models.kernels import library
from autotune.models.kernels.choice import (
    Choice,
    LayerKernels,
    Machine,
    Target,
    no_compiler,
    of_paths,
    version,
)

if TYPE_CHECKING:
    import torch

VARLEN: Final = "varlen"
HUB: Final = "hub_flash_attention_2"
_REPOSITORY: Final = "kernels-community/flash-attn2"
_REGISTERED: Final = {VARLEN: "autotune_varlen", HUB: _REPOSITORY}
"""Choice to its name in transformers' registry, where that is another one."""
_PATHS: Final = {
    "sdpa": "transformers.integrations.sdpa_attention.",
    "flex_attention": "transformers.integrations.flex_attention.",
    "flash_attention_2": "transformers.integrations.flash_attention.",
    HUB: "transformers.integrations.flash_attention.",
    VARLEN: "autotune.models.kernels.varlen.",
}
SWITCHES: Final = {
    "sdpa": "_supports_sdpa",
    "flex_attention": "_supports_flex_attn",
    "flash_attention_2": "_supports_flash_attn",
    HUB: "_supports_flash_attn",
}
"""Choice to the switch by which a model's class says that it can run it. Functions under other
names are not asked for one (``modeling_utils.py``, ``get_correct_attn_implementation``)."""
_AMPERE: Final = (8, 0)


def registered_name(choice: str) -> str:
    """Return the name by which transformers knows a choice; makes it known."""
    if choice == VARLEN:
        from transformers import AttentionInterface

        from autotune.models.kernels.varlen import varlen_attention_forward

        AttentionInterface.register(_REGISTERED[VARLEN], varlen_attention_forward)
    return _REGISTERED.get(choice, choice)


def _bind(target: Target, choice: str) -> None:
    """Nothing is left to do: the model is made with it, and read back like the others."""
    del target, choice


def _bound(target: Target) -> str:
    """Transformers puts a build of the hub in place of a package that it cannot import.

    It runs that through the same function, so the name and the function must both be the choice's.
    """
    found = target.family.implementations(target.module).get("attention", "")
    config: Any = target.module.config
    name = str(config._attn_implementation)
    choice = {registered: one for one, registered in _REGISTERED.items()}.get(name, name)
    if choice not in _PATHS:
        return name
    return of_paths(found, {choice: _PATHS[choice]})


def _refused(family: str, choice: str) -> str | None:
    found = library.causal_class(family)
    switch = SWITCHES.get(choice)
    if found is None or switch is None or found.switches.get(switch, True):
        return None
    return f"{found.name} of transformers {version('transformers')} does not support it"


def _no_varlen(machine: Machine) -> str | None:
    del machine
    # The module itself imports torch, so only the file is looked for.
    spec = importlib.util.find_spec("torch")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if any(Path(folder, "nn/attention/varlen.py").is_file() for folder in folders):
        return None
    return "this torch has no torch.nn.attention.varlen; to have it: torch 2.10 or later"


def _not_in_cache(machine: Machine) -> str | None:
    """A trial must not wait for a hub, nor get another build than the one before it."""
    del machine
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    name = _REPOSITORY.replace("/", "--")
    folders = [cache / f"{kind}--{name}" / "snapshots" for kind in ("models", "kernels")]
    if any(folder.is_dir() and any(folder.iterdir()) for folder in folders):
        return None
    return (
        f"{_REPOSITORY} is not in the cache of the Hugging Face hub; to have it: kernels download "
        "it once where the hub is reached"
    )


LAYER: Final = LayerKernels(
    knob="attention",
    kinds=("attention",),
    choices=(
        Choice(name="sdpa"),
        # On a CPU it has no backward (``flex_attention.py``, ``_validate_device``).
        Choice(name="flex_attention", needs_cuda=True, unfit=no_compiler),
        Choice(
            name="flash_attention_2",
            packages=("flash_attn",),
            install="pip install flash-attn --no-build-isolation (it is compiled for the GPU)",
            needs_cuda=True,
            capability=_AMPERE,
            computes=("bf16",),
        ),
        Choice(
            name=HUB,
            packages=("kernels",),
            install="pip install kernels",
            needs_cuda=True,
            capability=_AMPERE,
            computes=("bf16",),
            unfit=_not_in_cache,
        ),
        Choice(
            name=VARLEN,
            needs_cuda=True,
            capability=_AMPERE,
            computes=("bf16",),
            unfit=_no_varlen,
        ),
    ),
    bind=_bind,
    bound=_bound,
    refused=_refused,
)


def boundaries(position_ids: torch.Tensor) -> torch.Tensor:
    """Return the cumulative lengths of one packed row (int32): 0, …, its length."""
    import torch

    starts = (position_ids.flatten() == 0).nonzero().flatten()
    end = starts.new_tensor([position_ids.numel()])
    return torch.cat([starts, end]).to(torch.int32)
