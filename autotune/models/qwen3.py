"""The Qwen3 family: dense decoder, grouped-query attention, query and key norms."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotune.contract.plan import Model
from autotune.models import qwen3_shape
from autotune.models.checkpoint import ParameterShape
from autotune.models.family import Batch

if TYPE_CHECKING:
    import torch


class Qwen3Family:
    """``transformers.Qwen3ForCausalLM`` as the installed library has it."""

    name = "qwen3"

    def complete(self, config: Mapping[str, Any], where: str) -> dict[str, Any]:
        return qwen3_shape.complete(config, where)

    def parameters(self, config: Mapping[str, Any]) -> tuple[ParameterShape, ...]:
        return qwen3_shape.parameters(config)

    def vocab_size(self, config: Mapping[str, Any]) -> int:
        return int(config["vocab_size"])

    def flops_per_token(self, config: Mapping[str, Any], lengths: Sequence[int]) -> float:
        return qwen3_shape.flops_per_token(config, lengths)

    def build(self, model: Model, *, dtype: torch.dtype) -> torch.nn.Module:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        # The library writes into the rotary parameters that it is given.
        fields = copy.deepcopy(model.config)
        config = AutoConfig.for_model(fields.pop("model_type"), **fields)
        config.use_cache = False
        with torch.device("meta"):
            module: torch.nn.Module = AutoModelForCausalLM.from_config(
                config, attn_implementation="sdpa", dtype=dtype
            )
        return module.train()

    def layers(self, module: torch.nn.Module) -> Sequence[torch.nn.Module]:
        return list(_decoder(module).layers)

    def embeddings(self, module: torch.nn.Module) -> tuple[torch.nn.Module, torch.nn.Module]:
        return _decoder(module).embed_tokens, _causal(module).lm_head

    def implementations(self, module: torch.nn.Module) -> dict[str, str]:
        from autotune.models.loss import token_loss_sum

        layers: list[Any] = list(self.layers(module))
        attention = {_attention_function(layer.self_attn) for layer in layers}
        norms = [_decoder(module).norm]
        for layer in layers:
            norms += [layer.input_layernorm, layer.post_attention_layernorm]
            norms += [layer.self_attn.q_norm, layer.self_attn.k_norm]
        return {
            "attention": " + ".join(sorted(attention)),
            "norm": " + ".join(sorted({_path(norm.forward) for norm in norms})),
            "mlp": " + ".join(sorted({_path(layer.mlp.forward) for layer in layers})),
            "loss": _path(token_loss_sum),
        }

    def logits(self, module: torch.nn.Module, batch: Batch) -> torch.Tensor:
        output = module(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            use_cache=False,
        )
        logits: torch.Tensor = output.logits
        return logits


def _causal(module: torch.nn.Module) -> Any:
    """The causal language model itself, where ``module`` is an engine around it."""
    while not hasattr(module, "lm_head"):
        inner = getattr(module, "module", None)
        if inner is None:
            raise TypeError(f"a {type(module).__name__} holds no causal language model")
        module = inner
    return module


def _decoder(module: torch.nn.Module) -> Any:
    return _causal(module).model


def _attention_function(attention: Any) -> str:
    """The function that this attention layer will call, looked up as its ``forward`` does."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    modeling = sys.modules[type(attention).__module__]
    name = attention.config._attn_implementation
    return _path(ALL_ATTENTION_FUNCTIONS.get_interface(name, modeling.eager_attention_forward))


def _path(function: Any) -> str:
    """Where a function or bound method is defined: what an import would name."""
    function = getattr(function, "__func__", function)
    return f"{function.__module__}.{function.__qualname__}"
