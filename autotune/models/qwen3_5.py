"""The Qwen3.5 family: gated delta net layers with an attention layer now and then (text model)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from autotune.models import causal_lm, mixing, qwen3_5_shape
from autotune.models.checkpoint import ParameterShape
from autotune.models.kernels import convolution, linear_attention, rebinding, table
from autotune.models.kernels.choice import is_importable
from autotune.models.starts import Start

if TYPE_CHECKING:
    import torch

    from autotune.models.family import Batch

_MIXING_KNOBS: Final = ("attention", "linear_attention", "convolution")
"""Of the layer types by which tokens of a row reach each other."""


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

    imports_kernels = any(map(is_importable, ("fla", "causal_conv1d")))
    """Whether the library's file imports packages that may touch the device: then each rank
    imports it by itself, and no fork server does."""

    def complete(self, config: Mapping[str, Any], where: str) -> dict[str, Any]:
        return qwen3_5_shape.complete(config, where)

    def parameters(self, config: Mapping[str, Any]) -> tuple[ParameterShape, ...]:
        return qwen3_5_shape.parameters(config)

    def flops_per_token(
        self, config: Mapping[str, Any], lengths: Sequence[int], adapters: int | None = None
    ) -> float:
        return qwen3_5_shape.flops_per_token(config, lengths, adapters)

    def packing_refusal(self, config: Mapping[str, Any], kernels: Mapping[str, str]) -> str | None:
        """Position ids separate samples in attention only.

        Gated delta nets and their convolution need kernels that take boundaries.
        """
        if "linear_attention" not in config["layer_types"]:
            return super().packing_refusal(config, kernels)
        reasons = (table.lets_samples_mix(knob, kernels) for knob in _MIXING_KNOBS)
        found = [reason for reason in reasons if reason is not None]
        if not found:
            return None
        return f"a hybrid model needs kernels that take sequence boundaries, and {'; '.join(found)}"

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """As in every family, and what the convolution's package wants of a packed row."""
        ends = batch.boundaries
        packed = {} if ends is None else {"seq_idx": ends.seq_idx}
        return {**super().inputs(batch), **packed}

    def mixing_kinds(self, module: torch.nn.Module) -> Sequence[str]:
        kinds = super().mixing_kinds(module)
        return [convolution.KIND, *kinds] if linear_attention.KIND in kinds else kinds

    @contextlib.contextmanager
    def watching_mixers(self, module: torch.nn.Module, seen: mixing.Seen) -> Iterator[None]:
        """As in every family, and the convolution inside each gated delta net."""
        mixers = self.mixers(module)
        linear = [n for n, (kind, _) in enumerate(mixers) if kind == linear_attention.KIND]
        with contextlib.ExitStack() as stack:
            stack.enter_context(super().watching_mixers(module, seen))
            for file in {causal_lm.modeling_of(mixers[n][1]) for n in linear}:
                stack.enter_context(
                    mixing.watching_calls(file, convolution.NAME, convolution.KIND, linear, seen)
                )
            yield

    def implementations(self, module: torch.nn.Module) -> dict[str, str]:
        layers: list[Any] = list(self.layers(module))
        linear = [layer.linear_attn for layer in layers if hasattr(layer, "linear_attn")]
        norms = [*causal_lm.norms_of(module, layers), *(mixer.norm for mixer in linear)]
        bound = {
            **causal_lm.shared_implementations(module, layers),
            linear_attention.KIND: causal_lm.joined(
                _kernel(mixer, linear_attention.NAME) for mixer in linear
            ),
            convolution.KIND: causal_lm.joined(
                _kernel(mixer, convolution.NAME) for mixer in linear
            ),
            "norm": causal_lm.joined(causal_lm.path_of(norm.forward) for norm in norms),
        }
        return {kind: path for kind, path in bound.items() if path}


def _kernel(mixer: torch.nn.Module, name: str) -> str:
    """The function that a call of ``name`` in the layer's own file ends in."""
    file = causal_lm.modeling_of(mixer)
    return causal_lm.path_of(rebinding.implementation(getattr(file, name)))
