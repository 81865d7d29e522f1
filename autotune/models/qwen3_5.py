"""The Qwen3.5 family: gated delta net layers with an attention layer now and then (text model)."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from autotune.models import causal_lm, qwen3_5_shape
from autotune.models.checkpoint import ParameterShape
from autotune.models.starts import Start

if TYPE_CHECKING:
    import torch


class Qwen35Family(causal_lm.CausalLmFamily):
    """``transformers.Qwen3_5ForCausalLM`` as the installed library has it."""

    name = "qwen3_5"
    # ``Qwen3_5PreTrainedModel._init_weights``: this norm multiplies by 1 + weight, and the gate's
    # bias and decay rates have starts of their own.
    starts: ClassVar[Mapping[str, Start]] = {
        "dt_bias": "ones",
        "A_log": "log_uniform",
        "Qwen3_5RMSNorm.weight": "zeros",
    }

    imports_kernels = importlib.util.find_spec("fla") is not None
    """Whether the library's file imports flash-linear-attention, which may touch the device: then
    each rank imports it by itself, and no fork server does."""

    def complete(self, config: Mapping[str, Any], where: str) -> dict[str, Any]:
        return qwen3_5_shape.complete(config, where)

    def parameters(self, config: Mapping[str, Any]) -> tuple[ParameterShape, ...]:
        return qwen3_5_shape.parameters(config)

    def flops_per_token(
        self, config: Mapping[str, Any], lengths: Sequence[int], adapters: int | None = None
    ) -> float:
        return qwen3_5_shape.flops_per_token(config, lengths, adapters)

    def packing_refusal(self, config: Mapping[str, Any]) -> str | None:
        """Position ids separate samples in attention only; the recurrent state runs through.

        ``transformers/integrations/hub_kernels.py``: torch's own functions cannot take sequence
        boundaries, and none are passed to a package's kernels.
        """
        if "linear_attention" not in config["layer_types"]:
            return None
        return (
            "linear attention and its convolution would carry one sample's state into the next: "
            "no sequence boundaries are passed to them"
        )

    def implementations(self, module: torch.nn.Module) -> dict[str, str]:
        from autotune.models.loss import token_loss_sum

        layers: list[Any] = list(self.layers(module))
        linear = [layer.linear_attn for layer in layers if hasattr(layer, "linear_attn")]
        full = [layer.self_attn for layer in layers if hasattr(layer, "self_attn")]
        norms = [*causal_lm.norms_of(module, layers), *(mixer.norm for mixer in linear)]
        bound = {
            "attention": causal_lm.joined(map(causal_lm.attention_function, full)),
            "linear attention": causal_lm.joined(
                _kernel(mixer, "torch_chunk_gated_delta_rule") for mixer in linear
            ),
            "convolution": causal_lm.joined(_kernel(mixer, "causal_conv1d_fn") for mixer in linear),
            "norm": causal_lm.joined(causal_lm.path_of(norm.forward) for norm in norms),
            "mlp": causal_lm.joined(causal_lm.path_of(layer.mlp.forward) for layer in layers),
            "loss": causal_lm.path_of(token_loss_sum),
        }
        return {kind: path for kind, path in bound.items() if path}


def _kernel(mixer: torch.nn.Module, name: str) -> str:
    """The function behind ``name`` in the layer's own file.

    The library decides at import whether a package's kernel takes the place of the torch
    function, and the wrapper keeps the torch function's name either way: the truth is the
    ``implementation`` that it closed over (``use_kernel_func_from_hub_with_fallback``).
    """
    wrapper: Callable[..., Any] = getattr(causal_lm.modeling_of(mixer), name)
    function = wrapper
    while "implementation" not in inspect.getclosurevars(function).nonlocals:
        inner = getattr(function, "__wrapped__", None)
        if inner is None:
            return causal_lm.path_of(wrapper)
        function = inner
    return causal_lm.path_of(inspect.getclosurevars(function).nonlocals["implementation"])
