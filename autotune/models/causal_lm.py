"""What the families share: transformers' causal language models of plain decoder layers."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from autotune.contract.plan import Model
from autotune.models import mixing
from autotune.models.checkpoint import ParameterShape
from autotune.models.kernels import table
from autotune.models.kernels.attention import registered_name
from autotune.models.kernels.choice import KernelRefusedError, Target, first_line
from autotune.models.kernels.compiled import is_compiled
from autotune.models.kernels.loss import function_of
from autotune.models.starts import Start

if TYPE_CHECKING:
    import torch

    from autotune.models.family import Batch, ModelFamily


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

    def build(
        self,
        model: Model,
        *,
        dtype: torch.dtype,
        kernels: Mapping[str, str],
        static_shapes: bool = False,
    ) -> torch.nn.Module:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        # The library writes into the rotary parameters that it is given.
        fields = copy.deepcopy(model.config)
        config = AutoConfig.for_model(fields.pop("model_type"), **fields)
        config.use_cache = False
        with torch.device("meta"):
            module: torch.nn.Module = _made(
                AutoModelForCausalLM, config, dtype, kernels.get("attention", "sdpa")
            )
        module.train()
        family = cast("ModelFamily", self)  # what the families add makes it one
        target = Target(family=family, module=module, static_shapes=static_shapes)
        table.bind(target, kernels)
        return module

    def layers(self, module: torch.nn.Module) -> Sequence[torch.nn.Module]:
        return list(decoder(module).layers)

    def embeddings(self, module: torch.nn.Module) -> tuple[torch.nn.Module, torch.nn.Module]:
        return decoder(module).embed_tokens, causal_model(module).lm_head

    def mixers(self, module: torch.nn.Module) -> Sequence[tuple[str, torch.nn.Module]]:
        return [mixer_of(layer) for layer in self.layers(module)]

    def mixing_kinds(self, module: torch.nn.Module) -> Sequence[str]:
        return list(dict.fromkeys(kind for kind, _ in self.mixers(module)))

    def watching_mixers(
        self, module: torch.nn.Module, seen: mixing.Seen
    ) -> contextlib.AbstractContextManager[None]:
        return mixing.watching_modules(self.mixers(module), seen)

    def parts(self, layer: torch.nn.Module) -> Sequence[tuple[str, torch.nn.Module]]:
        inside: Any = layer
        if is_compiled(layer):
            return [("layer", layer)]  # hooks inside it would be compiled anew
        wide = "experts" if hasattr(inside.mlp, "experts") else "mlp"
        return [
            ("norm", inside.input_layernorm),
            mixer_of(layer),
            ("norm", inside.post_attention_layernorm),
            (wide, inside.mlp),
        ]

    def packing_refusal(
        self,
        config: Mapping[str, Any],  # noqa: ARG002 - families with more mixers read it
        kernels: Mapping[str, str],
    ) -> str | None:
        """Attention is all that mixes tokens; every choice of it that is offered has boundaries."""
        return table.lets_samples_mix("attention", kernels)

    def layer_counts(self, config: Mapping[str, Any]) -> dict[str, int]:
        num_linear = list(config.get("layer_types", ())).count("linear_attention")
        return {
            "attention_layers": int(config["num_hidden_layers"]) - num_linear,
            "linear_attention_layers": num_linear,
        }

    def one_of_each(self, config: Mapping[str, Any]) -> dict[str, Any]:
        kinds = list(dict.fromkeys(config["layer_types"]))
        return {**config, "layer_types": kinds, "num_hidden_layers": len(kinds)}

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """What the model is called with, but for the targets.

        Boundaries of a packed row have the names of transformers' ``FlashAttentionKwargs`` and
        reach every layer.
        """
        ends = batch.boundaries
        packed = (
            {}
            if ends is None
            else {
                "cu_seq_lens_q": ends.cu_seq_lens,
                "cu_seq_lens_k": ends.cu_seq_lens,
                "max_length_q": ends.max_length,
                "max_length_k": ends.max_length,
            }
        )
        return {
            "input_ids": batch.input_ids,
            "attention_mask": batch.attention_mask,
            "position_ids": batch.position_ids,
            "use_cache": False,
            **packed,
        }

    def logits(self, module: torch.nn.Module, batch: Batch) -> torch.Tensor:
        logits: torch.Tensor = module(**self.inputs(batch)).logits
        return logits

    def loss_sum(self, module: torch.nn.Module, batch: Batch) -> torch.Tensor:
        loss: torch.Tensor = module(**self.inputs(batch), targets=batch.labels)
        return loss


def _made(auto: Any, config: Any, dtype: torch.dtype, attention: str) -> torch.nn.Module:
    """The library's model; on the meta device, as the caller has set it."""
    try:
        module: torch.nn.Module = auto.from_config(
            config, attn_implementation=registered_name(attention), dtype=dtype
        )
    except (ImportError, ValueError) as error:
        raise KernelRefusedError(
            f"transformers refuses attention {attention}: {first_line(error)}"
        ) from error
    return module


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


def shared_implementations(module: torch.nn.Module, layers: Sequence[Any]) -> dict[str, str]:
    """What every family's layer types but norms and token mixers are bound to.

    MLPs are those of dense layers; empty texts where the model has none of a type.
    """
    full = [layer.self_attn for layer in layers if hasattr(layer, "self_attn")]
    dense = [layer.mlp for layer in layers if not hasattr(layer.mlp, "experts")]
    return {
        "attention": joined(map(attention_function, full)),
        "rope": joined(path_of(modeling_of(mixer).apply_rotary_pos_emb) for mixer in full),
        "mlp": joined(path_of(mlp.forward) for mlp in dense),
        "loss": path_of(function_of(causal_model(module).lm_head)),
        "layer": joined(_layer_path(layer) for layer in layers),
    }


def _layer_path(layer: Any) -> str:
    if is_compiled(layer):
        return f"torch.compile of {path_of(type(layer).forward)}"
    return path_of(layer.forward)


def joined(paths: Iterable[str]) -> str:
    """What several layers are bound to, as one text."""
    return " + ".join(sorted(set(paths)))


def path_of(function: Any) -> str:
    """Where a function or bound method is defined: what an import would name."""
    function = getattr(function, "__func__", function)
    return f"{function.__module__}.{function.__qualname__}"
