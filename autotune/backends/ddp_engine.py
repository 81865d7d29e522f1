"""DDP in a rank: build a whole copy by name, step, and say what the reducer really holds.

Read from torch 2.13 (``torch/nn/parallel/distributed.py``): whether a backward is synchronised is
decided in the forward before it (``_post_forward``), so the engine must know the last micro-step
before its forward. The attribute that ``no_sync`` switches is set directly, because the forward
and the backward of a micro-step are two calls here.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autotune.backends import adamw, recompute
from autotune.backends.base import IncompatibleConfigError, RankContext
from autotune.backends.filling import fill
from autotune.backends.numberformats import TORCH_DTYPES, names_of
from autotune.contract.outcome import ReadBackLevel
from autotune.contract.plan import Plan
from autotune.models import checkpointing, lora, quantized
from autotune.models.family import family_of
from autotune.models.weights import WeightSource


class ComputeCopy:
    """A copy of all weights in the compute format, from one forward to the end of its backward.

    As FSDP2's mixed precision: every use of a weight sees the same rounded copy, the gradients of
    the uses of a tied one are summed in the compute format, and what reaches the weight itself is
    cast to its own format. The copies lie in the modules' own dictionaries, which hides the
    parameters from attribute access and from nothing else, so recomputation in backward sees them
    too.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._places = [
            (owner, name, parameter)
            for owner in module.modules()
            for name, parameter in owner.named_parameters(recurse=False)
            if parameter.is_floating_point()  # packed ones are unpacked in their own product
        ]
        module.register_forward_pre_hook(self._make)

    def _make(self, module: nn.Module, arguments: Any) -> None:
        del module, arguments
        copies: dict[nn.Parameter, torch.Tensor] = {}
        for owner, name, parameter in self._places:
            if parameter not in copies:
                copies[parameter] = parameter.to(self._dtype)
            owner.__dict__[name] = copies[parameter]

    def drop(self) -> None:
        """Give the memory back; the next forward makes new copies."""
        for owner, name, _ in self._places:
            owner.__dict__.pop(name, None)


class DdpEngine:
    """A replicated module and its AdamW."""

    def __init__(
        self,
        wrapped: DistributedDataParallel,
        copy: ComputeCopy | None,
        settings: Mapping[str, Any],
    ) -> None:
        self._wrapped = wrapped
        self._copy = copy
        self._clipping = float(settings["gradient_clipping"])
        self._parameters = [p for p in wrapped.parameters() if p.requires_grad]
        self._optimizer = adamw.make(self._parameters, settings)

    @property
    def model(self) -> nn.Module:
        return self._wrapped

    @property
    def module(self) -> nn.Module:
        module: nn.Module = self._wrapped.module
        return module

    def before_forward(self, *, last: bool) -> None:
        self._wrapped.require_backward_grad_sync = last

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        assert self._wrapped.require_backward_grad_sync == last, "forward was told otherwise"
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if self._copy is not None:
            self._copy.drop()

    def step(self) -> torch.Tensor | float:
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = _total_norm(gradients)
        if self._clipping > 0:
            nn.utils.clip_grads_with_norm_(self._parameters, self._clipping, norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def read_back(self) -> Mapping[str, tuple[Any, ReadBackLevel]]:
        logged = self._logged()
        found: dict[str, tuple[Any, ReadBackLevel]] = {
            "ddp.bucket_cap_mb": (int(logged["bucket_cap_bytes"]) // 2**20, "live"),
            "ddp.gradient_as_bucket_view": (bool(logged["gradient_as_bucket_view"]), "live"),
            # The reducer logs it only where it is set.
            "ddp.static_graph": (bool(logged.get("static_graph", 0)), "live"),
            adamw.KNOB: (adamw.implementation(self._optimizer), "live"),
        }
        return found

    def formats(self) -> Mapping[str, str]:
        return {
            "master": names_of(p.dtype for p in self._parameters),
            "optimizer": names_of(adamw.state_dtypes(self._optimizer)),
        }

    def updates(self) -> int | None:
        return adamw.updates(self._optimizer)

    def notes(self) -> Mapping[str, Any]:
        logged = self._logged()
        sizes = logged.get("rebuilt_bucket_sizes") or logged["bucket_sizes"]
        return {"ddp_buckets": len(str(sizes).split(","))}

    def close(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def _logged(self) -> Mapping[str, Any]:
        """What the reducer itself logged of its construction and of its last step."""
        # torch leaves it untyped.
        data: Mapping[str, Any] = self._wrapped._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # the same
        return data


def _total_norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the L2 norm of all gradients.

    torch sums a tensor's squares one after the other in float32 without a device: on the whole
    embedding of a tiny model that is 1.2e-5 off. Engines that shard sum shorter pieces.
    """
    norm: torch.Tensor
    if gradients[0].device.type == "cpu":
        norms = [torch.linalg.vector_norm(g, dtype=torch.float64) for g in gradients]
        norm = torch.linalg.vector_norm(torch.stack(norms)).to(torch.float32)
    else:
        norm = nn.utils.get_total_norm(gradients)
    return norm


def build(settings: dict[str, Any], plan: Plan, rank: RankContext) -> DdpEngine:
    """Build a whole copy of the model on the rank's device, filled by name.

    Raises:
        IncompatibleConfigError: A static graph with several micro-steps, or torch refuses.
    """
    arguments = dict(settings["ddp"])
    if arguments["static_graph"] and plan.cut.micro_steps > 1:
        raise IncompatibleConfigError(
            f"static_graph with {plan.cut.micro_steps} micro-steps an iteration: torch's "
            "reducer fails where some of them are not synchronised"
        )
    family = family_of(plan.training.model.family)
    master = settings["master_dtype"]
    module = family.build(
        plan.training.model,
        dtype=TORCH_DTYPES[settings.get("frozen_dtype", master)],
        kernels=plan.kernels,
        static_shapes=plan.cut.distinct_shapes == 1,
    )
    if settings.get("quantized"):
        compute = TORCH_DTYPES[settings["precision"]["compute_dtype"]]
        quantized.replace_linear_layers(module, plan.training.model, compute=compute)
    lora.attach(module, plan.training, trained=TORCH_DTYPES[master])
    source = WeightSource.of(plan.training.model, module)
    checkpointing.enable(module, recompute.wanted(plan))
    fill(module, source, rank)
    copy = None
    if settings["precision"]["bf16_copy"]:
        copy = ComputeCopy(module, TORCH_DTYPES[settings["precision"]["compute_dtype"]])
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters:
        arguments["forward_sync_buffers"] = arguments.pop("broadcast_buffers")  # torch 2.13
    device_ids = [rank.device.index] if rank.device.type == "cuda" else None
    try:
        wrapped = DistributedDataParallel(module, device_ids=device_ids, **arguments)
    except (ValueError, TypeError) as error:
        raise IncompatibleConfigError(f"DDP refuses the configuration: {error}") from error
    return DdpEngine(wrapped, copy, settings)
