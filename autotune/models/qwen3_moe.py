"""The Qwen3 mixture-of-experts family: Qwen3's attention, and experts that a router chooses.

The load-balancing loss depends on how the batch is cut, so it is neither computed nor part of
the loss: it would make equal work unequal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotune.models import causal_lm, qwen3_moe_shape
from autotune.models.checkpoint import ParameterShape

if TYPE_CHECKING:
    import torch


class Qwen3MoeFamily(causal_lm.CausalLmFamily):
    """``transformers.Qwen3MoeForCausalLM`` as the installed library has it."""

    name = "qwen3_moe"
    leaf_classes = ("Qwen3MoeSparseMoeBlock",)
    # The router is no linear layer, the experts of a layer are one tensor, and peft takes the names
    # of a dense layer's matrices for those of experts (peft's ``transformers_weight_conversion``).
    not_adapted = (".mlp.gate", ".mlp.gate_proj", ".mlp.up_proj", ".mlp.down_proj")

    def complete(self, config: Mapping[str, Any], where: str) -> dict[str, Any]:
        return qwen3_moe_shape.complete(config, where)

    def parameters(self, config: Mapping[str, Any]) -> tuple[ParameterShape, ...]:
        return qwen3_moe_shape.parameters(config)

    def flops_per_token(
        self, config: Mapping[str, Any], lengths: Sequence[int], adapters: int | None = None
    ) -> float:
        return qwen3_moe_shape.flops_per_token(config, lengths, adapters)

    def one_of_each(self, config: Mapping[str, Any]) -> dict[str, Any]:
        layers = range(config["num_hidden_layers"])
        dense = [] if all(qwen3_moe_shape.is_sparse(config, i) for i in layers) else [0]
        count = 1 + len(dense)
        kinds = {"decoder_sparse_step": 1, "mlp_only_layers": dense, "num_hidden_layers": count}
        return {**config, **kinds}

    def implementations(self, module: torch.nn.Module) -> dict[str, str]:
        layers: list[Any] = list(self.layers(module))
        sparse = [layer.mlp for layer in layers if hasattr(layer.mlp, "experts")]
        norms = causal_lm.norms_of(module, layers)
        bound = {
            **causal_lm.shared_implementations(module, layers),
            "norm": causal_lm.joined(causal_lm.path_of(norm.forward) for norm in norms),
            "experts": causal_lm.joined(_experts_function(block.experts) for block in sparse),
            "router": causal_lm.joined(causal_lm.path_of(block.gate.forward) for block in sparse),
        }
        return {kind: path for kind, path in bound.items() if path}


def _experts_function(experts: Any) -> str:
    """The function that these experts will call, looked up as their ``forward`` does.

    ``transformers/integrations/moe.py``, ``use_experts_implementation``: the class's own loop is
    what the wrapper keeps as ``__wrapped__``.
    """
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    if "forward" in vars(experts):
        return causal_lm.path_of(experts.forward)  # patched on the module itself
    own = getattr(type(experts).forward, "__wrapped__", type(experts).forward)
    name = experts.config._experts_implementation
    return causal_lm.path_of(ALL_EXPERTS_FUNCTIONS.get_interface(name, own))
