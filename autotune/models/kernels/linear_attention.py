"""Gated delta nets: torch's chunked form, or flash-linear-attention's kernels.

The layers call ``torch_chunk_gated_delta_rule`` of their own file with ``cu_seqlens``, the
cumulative lengths of a packed row's samples (``modeling_qwen3_5.py``). The torch function takes no
notice of them and carries one sample's state into the next; fla's kernel begins anew at each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from autotune.models.kernels import fla_package, rebinding
from autotune.models.kernels.choice import Choice, LayerKernels, Target, by_path

if TYPE_CHECKING:
    import torch

NAME: Final = "torch_chunk_gated_delta_rule"
"""Of the file that defines the layers."""
KIND: Final = "linear attention"
TORCH: Final = "torch"
_FLA: Final = "fla"
_PATHS: Final = {TORCH: "transformers.models.", _FLA: "fla.ops."}


def _bind(target: Target, choice: str) -> None:
    for file in rebinding.files_of(target, KIND):
        if choice == _FLA:
            _bind_fla(file)
        else:
            rebinding.bind_torch(file, NAME)


def _bind_fla(file: Any) -> None:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    chunks = fla_package.Chunks()

    def call(
        kernel: rebinding.Function,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        cu_seqlens: torch.Tensor | None = None,
        **named: Any,
    ) -> Any:
        taken = {name: named[name] for name in _TAKEN if name in named}
        made = {"cu_seqlens": cu_seqlens, "chunk_indices": chunks.of(cu_seqlens)}
        return kernel(query, key, value, **taken, **made)

    rebinding.bind(file, NAME, chunk_gated_delta_rule, call)


_TAKEN: Final = ("g", "beta", "initial_state", "output_final_state", "use_qk_l2norm_in_kernel")


LAYER: Final = LayerKernels(
    knob="linear_attention",
    kinds=(KIND,),
    choices=(
        Choice(name=TORCH, boundaries=False),
        Choice(
            name=_FLA,
            packages=fla_package.PACKAGES,
            install=fla_package.INSTALL,
            needs_cuda=True,
            unfit=fla_package.wrong_gradients,
        ),
    ),
    bind=_bind,
    bound=by_path(KIND, _PATHS),
)
