"""What the families share: transformers' causal language models of plain decoder layers."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from autotune.contract.plan import Model
from autotune.models.checkpoint import ParameterShape
from autotune.models.starts import Start

if TYPE_CHECKING:
    import torch

    from autotune.models.family import Batch


class CausalLmFamily:
    """Building, running and taking apart; a family adds what its configuration means."""

    name: str
    leaf_classes: ClassVar[tuple[str, ...]] = ()
    starts: ClassVar[Mapping[str, Start]] = {}

    not_adapted: ClassVar[tuple[str, ...]] = ()
    """Ends of names of matrices in decoder layers that no adapter stands by."""

    def parameters(self, config: Mapping[str, Any]) -> tuple[ParameterShape, ...]:
        raise NotImplementedError

    def vocab_size(self, config: Mapping[str, Any]) -> int:
        return int(config["vocab_size"])

    def linear_layers(self, config: Mapping[str, Any]) -> Mapping[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for parameter in self.parameters(config):
            name, _, kind = parameter.names[0].rpartition(".")
            is_matrix = kind == "weight" and len(parameter.shape) == 2
            if is_matrix and ".layers." in name and not name.endswith(self.not_adapted):
                found[name] = (parameter.shape[0], parameter.shape[1])
        return found

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
        return list(decoder(module).layers)

    def embeddings(self, module: torch.nn.Module) -> tuple[torch.nn.Module, torch.nn.Module]:
        return decoder(module).embed_tokens, causal_model(module).lm_head

    def mixers(self, module: torch.nn.Module) -> Sequence[tuple[str, torch.nn.Module]]:
        return [mixer_of(layer) for layer in self.layers(module)]

    def parts(self, layer: torch.nn.Module) -> Sequence[tuple[str, torch.nn.Module]]:
        inside: Any = layer
        wide = "experts" if hasattr(inside.mlp, "experts") else "mlp"
        return [
            ("norm", inside.input_layernorm),
            mixer_of(layer),
            ("norm", inside.post_attention_layernorm),
            (wide, inside.mlp),
        ]

    def packing_refusal(self, config: Mapping[str, Any]) -> str | None:  # noqa: ARG002
        """``None``: attention is all that mixes tokens, and it obeys position ids.

        Position ids that restart become a block-diagonal causal mask where no attention mask is
        given (``transformers/masking_utils.py``, ``find_packed_sequence_indices``; 5.17 and 5.24
        alike).
        """
        return None

    def logits(self, module: torch.nn.Module, batch: Batch) -> torch.Tensor:
        output = module(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            use_cache=False,
        )
        logits: torch.Tensor = output.logits
        return logits


def causal_model(module: torch.nn.Module) -> Any:
    """The causal language model itself, where ``module`` is an engine around it."""
    while not hasattr(module, "lm_head"):
        inner = getattr(module, "module", None)
        if inner is None:
            raise TypeError(f"a {type(module).__name__} holds no causal language model")
        module = inner
    return module


def decoder(module: torch.nn.Module) -> Any:
    """The stack of layers inside the causal language model."""
    return causal_model(module).model


def mixer_of(layer: Any) -> tuple[str, torch.nn.Module]:
    """The part of a decoder layer through which tokens reach each other, with its layer type."""
    if hasattr(layer, "linear_attn"):
        return "linear attention", layer.linear_attn
    return "attention", layer.self_attn


def attention_function(attention: Any) -> str:
    """The function that this attention layer will call, looked up as its ``forward`` does."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = attention.config._attn_implementation
    eager = modeling_of(attention).eager_attention_forward
    return path_of(ALL_ATTENTION_FUNCTIONS.get_interface(name, eager))


def modeling_of(module: torch.nn.Module) -> Any:
    """The library's file that defines the module's class, also under FSDP2's subclass of it."""
    classes = [cls for cls in type(module).__mro__ if cls.__module__.startswith("transformers.")]
    return sys.modules[classes[0].__module__]


def norms_of(module: torch.nn.Module, layers: Iterable[Any]) -> list[Any]:
    """Every norm of the model but those inside a token mixer that is no attention."""
    norms = [decoder(module).norm]
    for layer in layers:
        norms += [layer.input_layernorm, layer.post_attention_layernorm]
        if hasattr(layer, "self_attn"):
            norms += [layer.self_attn.q_norm, layer.self_attn.k_norm]
    return norms


def joined(paths: Iterable[str]) -> str:
    """What several layers are bound to, as one text."""
    return " + ".join(sorted(set(paths)))


def path_of(function: Any) -> str:
    """Where a function or bound method is defined: what an import would name."""
    function = getattr(function, "__func__", function)
    return f"{function.__module__}.{function.__qualname__}"
