"""What a model family offers, and how the family of a configuration is found.

A family is registered under the ``model_type`` of its configurations
(``autotune.registry``, kind ``models``). All that the coordinator calls works without torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from autotune import registry
from autotune.contract.plan import Model
from autotune.errors import InputError
from autotune.models.checkpoint import ParameterShape
from autotune.models.mixing import Seen
from autotune.models.starts import Start

if TYPE_CHECKING:
    import torch


class Boundaries(Protocol):
    """Where the samples of one packed row begin and end, in the forms that kernels take."""

    @property
    def cu_seq_lens(self) -> torch.Tensor:
        """int32: 0 and the end of each sample. The row's end may stand several times."""

    @property
    def max_length(self) -> int:
        """No sample is longer."""

    @property
    def seq_idx(self) -> torch.Tensor:
        """int32, 1 × length: the number of each token's sample, from 0."""


class Batch(Protocol):
    """The inputs of one micro-step; ``autotune.data.packing.MicroBatch`` is one."""

    @property
    def input_ids(self) -> torch.Tensor:
        """Token ids, rows × length."""

    @property
    def attention_mask(self) -> torch.Tensor | None:
        """1 for real tokens, 0 for padding; ``None`` where nothing is padded."""

    @property
    def position_ids(self) -> torch.Tensor | None:
        """Positions within each sample; ``None`` counts from 0 in each row."""

    @property
    def labels(self) -> torch.Tensor:
        """The next token of each position, or the ignored label; rows × length."""

    @property
    def boundaries(self) -> Boundaries | None:
        """Where the samples of a packed row begin and end; ``None`` where a row is one sample."""


class ModelFamily(Protocol):
    """One architecture. Stateless."""

    name: str
    """The ``model_type``."""
    leaf_classes: tuple[str, ...]
    """Names of module classes whose inner parts run in an order that changes from step to step
    (experts). ZeRO-3 must gather each of them as a whole."""
    starts: Mapping[str, Start]
    """How parameters start that are no exception-free weight, bias or norm: by the last part of
    their name, or by ``Class.name``."""

    def complete(self, config: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return the fields that decide training, checked, with every default filled in.

        Raises:
            InputError: A field is wrong, or the library's own model could not be built from it.
        """

    def parameters(self, config: Mapping[str, Any]) -> tuple[ParameterShape, ...]:
        """The parameters as the library names them, tied ones once."""

    def vocab_size(self, config: Mapping[str, Any]) -> int:
        """Number of token ids that the embedding knows."""

    def linear_layers(self, config: Mapping[str, Any]) -> Mapping[str, tuple[int, int]]:
        """Module name to output and input width of each linear layer that adapters may stand by."""

    def flops_per_token(
        self, config: Mapping[str, Any], lengths: Sequence[int], adapters: int | None = None
    ) -> float:
        """Model FLOPs of forward and backward per real token, for samples of these lengths.

        Args:
            config: A completed configuration.
            lengths: Sample lengths in tokens.
            adapters: Elements of the adapters where only those are trained.
        """

    def layer_counts(self, config: Mapping[str, Any]) -> dict[str, int]:
        """``attention_layers`` and ``linear_attention_layers``: facts for conditions of knobs."""

    def one_of_each(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a completed configuration with one layer of each kind, at their real widths."""

    def build(
        self,
        model: Model,
        *,
        dtype: torch.dtype,
        kernels: Mapping[str, str],
        static_shapes: bool = False,
    ) -> torch.nn.Module:
        """Return the library's causal language model on the meta device, in training mode.

        Args:
            model: Its configuration.
            dtype: Format of its weights.
            kernels: Bare name of a ``kernel.*`` knob to its choice; others have their default.
            static_shapes: Whether every micro-step has the same shape.

        Raises:
            KernelRefusedError: A library has no such kernel for the model.
            KernelNotBoundError: A patch changes nothing.
        """

    def layers(self, module: torch.nn.Module) -> Sequence[torch.nn.Module]:
        """The decoder layers, in order."""

    def embeddings(self, module: torch.nn.Module) -> tuple[torch.nn.Module, torch.nn.Module]:
        """Input embedding and output projection; they share one weight where it is tied."""

    def implementations(self, module: torch.nn.Module) -> dict[str, str]:
        """Layer type to the implementation that the live modules are bound to, as an import path.

        Several are joined by `` + ``.
        """

    def mixers(self, module: torch.nn.Module) -> Sequence[tuple[str, torch.nn.Module]]:
        """The modules through which tokens of a row reach each other, in order of forward.

        Each with its layer type. Their output (or its first part) is rows × length × hidden.
        """

    def mixing_kinds(self, module: torch.nn.Module) -> Sequence[str]:
        """The layer types by which tokens of a row reach each other."""

    def watching_mixers(
        self, module: torch.nn.Module, seen: Seen
    ) -> contextlib.AbstractContextManager[None]:
        """Tell ``seen`` what each part of those layer types returns, in order of forward.

        As long as it is entered, and where no layer runs compiled.
        """

    def parts(self, layer: torch.nn.Module) -> Sequence[tuple[str, torch.nn.Module]]:
        """The modules of a decoder layer that gradients must come through, with layer types."""

    def packing_refusal(self, config: Mapping[str, Any], kernels: Mapping[str, str]) -> str | None:
        """Why samples cannot be packed into one row with these kernels; ``None`` where they can."""

    def logits(self, module: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Run the model (or the engine that wraps it): rows × length × vocabulary."""

    def loss_sum(self, module: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Run the model (or its engine) and return the summed loss of the batch's labels.

        In float32, made inside the forward of the engine, where the head's weights are whole.
        """


def family_of(name: str) -> ModelFamily:
    """Return the family registered as ``name``.

    Raises:
        InputError: There is none.
    """
    return cast("ModelFamily", registry.load("models", name)())


def find_family(config: Mapping[str, Any], where: str) -> ModelFamily:
    """Return the family that ``config`` belongs to.

    Raises:
        InputError: ``model_type`` is missing or not one of the registered families.
    """
    known = ", ".join(sorted(registry.names("models")))
    model_type = config.get("model_type")
    if model_type is None:
        raise InputError(f"{where}: model_type is missing", hint=f"known families: {known}")
    # The text part of a multimodal model is saved as a type of its own, such as qwen3_5_text.
    family = model_type.removesuffix("_text") if isinstance(model_type, str) else ""
    if family not in registry.names("models"):
        raise InputError(
            f"{where}: model_type {model_type!r} belongs to no known model family",
            hint=f"known families: {known}",
        )
    return family_of(family)
