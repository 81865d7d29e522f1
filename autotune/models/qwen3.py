"""The Qwen3 family: dense decoder, grouped-query attention, query and key norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotune.models import causal_lm, qwen3_shape
from autotune.models.checkpoint import ParameterShape

if TYPE_CHECKING:
    import torch


class Qwen3Family(causal_lm.CausalLmFamily):
    """``transformers.Qwen3ForCausalLM`` as the installed library has it."""

    name = "qwen3"

    def complete(self, config: Mapping[str, Any], where: str) -> dict[str, Any]:
        return qwen3_shape.complete(config, where)

    def parameters(self, config: Mapping[str, Any]) -> tuple[ParameterShape, ...]:
        return qwen3_shape.parameters(config)

    def flops_per_token(
        self, config: Mapping[str, Any], lengths: Sequence[int], adapters: int | None = None
    ) -> float:
        return qwen3_shape.flops_per_token(config, lengths, adapters)

    def implementations(self, module: torch.nn.Module) -> dict[str, str]:
        layers: list[Any] = list(self.layers(module))
        norms = causal_lm.norms_of(module, layers)
        return {
            **causal_lm.shared_implementations(module, layers),
            "norm": causal_lm.joined(causal_lm.path_of(norm.forward) for norm in norms),
        }
