"""The short causal convolution before a gated delta net: torch, causal-conv1d, or fla's own.

The layers call ``causal_conv1d_fn`` of their own file with all that the model was called with
(``modeling_qwen3_5.py``): ``seq_idx``, the number of each token's sample, which the package
causal-conv1d takes, and ``cu_seq_lens_q``, which fla's Triton convolution takes. The torch
function takes no notice of either: each sample's first tokens then see the last ones of the
sample before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from autotune.models.kernels import fla_package, rebinding
from autotune.models.kernels.choice import Choice, LayerKernels, Target, by_path

if TYPE_CHECKING:
    import torch

NAME: Final = "causal_conv1d_fn"
"""Of the file that defines the layers."""
KIND: Final = "convolution"
MIXER: Final = "linear attention"
"""The layer type that has it."""
TORCH: Final = "torch"
_PACKAGE: Final = "causal_conv1d"
_FLA: Final = "fla"
_PATHS: Final = {TORCH: "transformers.models.", _PACKAGE: "causal_conv1d.", _FLA: "fla.modules."}


def _bind(target: Target, choice: str) -> None:
    bind = {TORCH: _bind_torch, _PACKAGE: _bind_package, _FLA: _bind_fla}[choice]
    for file in rebinding.files_of(target, MIXER):
        bind(file)


def _bind_torch(file: Any) -> None:
    rebinding.bind_torch(file, NAME)


def _bind_package(file: Any) -> None:
    from causal_conv1d import causal_conv1d_fn

    def call(
        kernel: rebinding.Function,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        activation: str | None = None,
        seq_idx: torch.Tensor | None = None,
        **_others: Any,
    ) -> Any:
        return kernel(hidden, weight, bias, activation=activation, seq_idx=seq_idx)

    rebinding.bind(file, NAME, causal_conv1d_fn, call)


def take_fla(model: Any) -> None:
    """Let the gated delta nets of a trainer's own model run fla's convolution.

    What an export's ``apply`` arranges: transformers takes only causal-conv1d by itself.

    Args:
        model: A model of transformers; others of its kind in the same process follow.
    """
    from autotune.models.causal_lm import modeling_of

    layers = [
        layer.linear_attn for layer in model.get_decoder().layers if hasattr(layer, "linear_attn")
    ]
    for file in dict.fromkeys(map(modeling_of, layers)):
        _bind_fla(file)


def _bind_fla(file: Any) -> None:
    from fla.modules.causal_conv1d import causal_conv1d

    chunks = fla_package.Chunks()

    def call(
        kernel: rebinding.Function,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        activation: str | None = None,
        cu_seq_lens_q: torch.Tensor | None = None,
        **_others: Any,
    ) -> Any:
        # It takes rows × length × channels, and the layers have channels before length.
        output, _ = kernel(
            hidden.transpose(1, 2),
            weight,
            bias,
            activation=activation,
            cu_seqlens=cu_seq_lens_q,
            chunk_indices=chunks.of(cu_seq_lens_q),
        )
        return output.transpose(1, 2)

    rebinding.bind(file, NAME, causal_conv1d, call)


LAYER: Final = LayerKernels(
    knob="convolution",
    kinds=(KIND,),
    choices=(
        Choice(name=TORCH, boundaries=False),
        Choice(
            name=_PACKAGE,
            packages=(_PACKAGE,),
            install="pip install causal-conv1d --no-build-isolation (it is compiled for the GPU)",
            needs_cuda=True,
        ),
        Choice(
            name=_FLA, packages=fla_package.PACKAGES, install=fla_package.INSTALL, needs_cuda=True
        ),
    ),
    bind=_bind,
    bound=by_path(KIND, _PATHS),
)
