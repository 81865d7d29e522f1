"""FSDP2 in a rank: build shard by shard, step, and say what the module really holds.

Read from torch 2.13 (``torch/distributed/fsdp/_fully_shard``: ``_fully_shard.py``,
``_fsdp_state.py``, ``_fsdp_param_group.py``).

*Root.* With ``reshard_after_forward`` true or a group size the root is left to torch's own rule
(``None``): it keeps its weights after forward, because backward begins with them. With false
nothing reshards.

*Prefetch.* In forward torch overlaps one unit ahead by itself on a GPU; an explicit list issues
the gather earlier from the host. In backward, a unit without a list prefetches the unit before it
(``_backward_prefetch``): depth 1 is that rule. Depth 0 is an explicit list that holds only the
unit itself, which is there already, so nothing is gathered ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from autotune.backends import adamw, fsdp2_settings, fsdp2_state, recompute
from autotune.backends.base import IncompatibleConfigError, RankContext
from autotune.backends.fsdp2_state import Unit, groups_of, reshard_of, state_of
from autotune.backends.numberformats import TORCH_DTYPES, names_of
from autotune.contract.outcome import ReadBackLevel
from autotune.contract.plan import Plan
from autotune.models import checkpointing, lora
from autotune.models.family import family_of
from autotune.models.weights import WeightSource, rebuild_buffers


class Fsdp2Engine:
    """A sharded module and its AdamW."""

    def __init__(
        self,
        module: nn.Module,
        units: Sequence[Unit],
        layers: Sequence[nn.Module],
        embedding: nn.Module,
        settings: Mapping[str, Any],
    ) -> None:
        self._module = module
        self._units = units
        self._layers = layers
        self._embedding = embedding
        self._clipping = float(settings["gradient_clipping"])
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._optimizer = adamw.make(self._parameters, settings)
        self._knobs = settings["fully_shard"]
        self._prepared_for_last = True

    @property
    def model(self) -> nn.Module:
        return self._module

    @property
    def module(self) -> nn.Module:
        return self._module

    def before_forward(self, *, last: bool) -> None:
        pass

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        if last != self._prepared_for_last:
            fsdp2_settings.before_backward(self._module, self._knobs, last=last)
            self._prepared_for_last = last
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def step(self) -> torch.Tensor | float:
        # As torchtitan's clip_grad_norm_ does it (torchtitan/distributed/utils.py): one all-reduce
        # makes the sharded norm whole, and the shards are scaled by a plain tensor.
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        sharded: Any = nn.utils.get_total_norm(gradients)
        norm: torch.Tensor = sharded.full_tensor()
        if self._clipping > 0:
            nn.utils.clip_grads_with_norm_(self._parameters, self._clipping, norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def read_back(self) -> Mapping[str, tuple[Any, ReadBackLevel]]:
        groups = self._all_groups()
        reshard, keeps_last = fsdp2_state.reshard(self._units)
        found = {
            "reshard_after_forward": reshard,
            "layers_per_unit": self._layers_per_unit(),
            "wrap_embeddings": self._embeddings_wrapped(),
            "forward_prefetch": fsdp2_state.forward_depth(
                [self._module, *(unit[0] for unit in self._units)]
            ),
            "backward_prefetch": fsdp2_state.backward_depth(self._units),
            **fsdp2_settings.read_communication(groups),
        }
        # What is dead in this configuration is not there to be read.
        if reshard is not False:
            found["keep_last_unit"] = keeps_last
        if self._embeddings_wrapped():
            own = groups_of(self._embedding)
            found["unshard_in_backward"] = fsdp2_state.flag(own, "unshard_in_backward", True)
        # What a micro-step switches is seen by preparing for one and going back.
        fsdp2_settings.before_backward(self._module, self._knobs, last=False)
        found |= fsdp2_settings.read_micro_step(groups)
        fsdp2_settings.before_backward(self._module, self._knobs, last=True)
        self._prepared_for_last = True
        read: dict[str, tuple[Any, ReadBackLevel]] = {
            f"fsdp2.{key}": (value, "live") for key, value in found.items()
        }
        read[adamw.KNOB] = (adamw.implementation(self._optimizer), "live")
        return read

    def formats(self) -> Mapping[str, str]:
        held = [held for group in self._all_groups() for held in group.fsdp_params]
        # None where torch needs no cast: the compute format is the weights' own, the format of
        # reduction the compute's (_fsdp_param.py, init_dtype_attrs).
        computed = [one.param_dtype or one.orig_dtype for one in held]
        return {
            "master": names_of(p.dtype for p in self._parameters),
            "compute": names_of(computed),
            "reduce": names_of(
                one.reduce_dtype or dtype for one, dtype in zip(held, computed, strict=True)
            ),
            "optimizer": names_of(adamw.state_dtypes(self._optimizer)),
        }

    def updates(self) -> int | None:
        return adamw.updates(self._optimizer)

    def notes(self) -> Mapping[str, Any]:
        root = [reshard_of(group) for group in groups_of(self._module)]
        return {
            "fsdp2_units": len(self._units) + 1,
            "fsdp2_groups": len(self._all_groups()),
            "fsdp2_reshard_root": root[0] if root else None,
            "fsdp2_reshard_units": [
                reshard_of(group) for unit in self._units for group in groups_of(unit[0])
            ],
        }

    def _all_groups(self) -> list[Any]:
        """Every set of weights that is gathered in one collective; the root's come first."""
        return [
            group
            for module in (self._module, *(unit[0] for unit in self._units))
            for group in groups_of(module)
        ]

    def close(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def _layers_per_unit(self) -> int:
        """Return how many layers the unit of the first layer has."""
        first = state_of(self._layers[0])
        return sum(1 for layer in self._layers if state_of(layer) is first)

    def _embeddings_wrapped(self) -> bool:
        return state_of(self._embedding) is not None


def build(settings: dict[str, Any], plan: Plan, rank: RankContext) -> Fsdp2Engine:
    """Build the model on the meta device, shard it, and fill each rank's shards by name.

    Raises:
        IncompatibleConfigError: torch refuses the configuration.
    """
    family = family_of(plan.training.model.family)
    master = settings["master_dtype"]
    module = family.build(
        plan.training.model,
        dtype=TORCH_DTYPES[settings.get("frozen_dtype", master)],
        kernels=plan.kernels,
        static_shapes=plan.cut.distinct_shapes == 1,
    )
    lora.attach(module, plan.training, trained=TORCH_DTYPES[master])
    source = WeightSource.of(plan.training.model, module)
    checkpointing.enable(module, recompute.wanted(plan))
    layers = list(family.layers(module))
    knobs = settings["fully_shard"]
    embedding, head = family.embeddings(module)
    units = _units(layers, knobs["layers_per_unit"])
    if knobs["wrap_embeddings"]:
        if head.weight is embedding.weight:
            raise IncompatibleConfigError("the output head is tied to the input embedding")
        units = [[embedding], *units, [head]]
    try:
        _shard(module, units, settings, plan)
        _set_prefetch(module, units, knobs)
        fsdp2_settings.apply(module, units, knobs)
    except (ValueError, NotImplementedError) as error:
        raise IncompatibleConfigError(
            f"fully_shard of torch {torch.__version__} refuses the configuration: {error}"
        ) from error
    module.to_empty(device=rank.device)
    _fill(module, source, rank)
    return Fsdp2Engine(module, units, layers, embedding, settings)


def _units(layers: Sequence[nn.Module], size: int) -> list[Unit]:
    return [list(layers[start : start + size]) for start in range(0, len(layers), size)]


def _shard(
    module: nn.Module, units: Sequence[Unit], settings: Mapping[str, Any], plan: Plan
) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mixed = settings["mixed_precision"]
    policy = MixedPrecisionPolicy(
        param_dtype=TORCH_DTYPES[mixed["param_dtype"]],
        reduce_dtype=TORCH_DTYPES[mixed["reduce_dtype"]],
        cast_forward_inputs=mixed["cast_forward_inputs"],
    )
    copies = settings["fully_shard"]["replicate"]
    shape: tuple[int, ...] = (plan.topology.processes,)
    names: tuple[str, ...] = ("shard",)
    if copies > 1:
        shape, names = (copies, plan.topology.processes // copies), ("replicate", "shard")
    mesh = init_device_mesh(plan.topology.device, shape, mesh_dim_names=names)
    reshard = settings["fully_shard"]["reshard_after_forward"]
    for unit in units:
        target = unit[0] if len(unit) == 1 else unit
        fully_shard(target, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    root = False if reshard is False else None
    fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=root)


def _set_prefetch(module: nn.Module, units: Sequence[Unit], knobs: Mapping[str, Any]) -> None:
    """Set explicit lists. A unit of several modules has one state, reached through any of them."""
    heads: list[Any] = [unit[0] for unit in units]
    root: Any = module
    forward, backward = knobs["forward_prefetch"], knobs["backward_prefetch"]
    if forward:
        root.set_modules_to_forward_prefetch(heads[:forward])
        for index, head in enumerate(heads):
            ahead = heads[index + 1 : index + 1 + forward]
            if ahead:
                head.set_modules_to_forward_prefetch(ahead)
    if backward == 0:
        for head in [root, *heads]:
            head.set_modules_to_backward_prefetch([head])
    elif backward > 1:
        root.set_modules_to_backward_prefetch(heads[::-1][:backward])
        for index, head in enumerate(heads):
            behind = heads[:index][::-1][:backward]
            if behind:
                head.set_modules_to_backward_prefetch(behind)


def _fill(module: nn.Module, source: WeightSource, rank: RankContext) -> None:
    """Write each parameter's by-name values into this rank's shard; one whole tensor at a time."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    with torch.no_grad():
        for name, parameter in module.named_parameters():
            sharded: Any = parameter
            shape, offset = compute_local_shape_and_global_offset(
                sharded.shape, sharded.device_mesh, sharded.placements
            )
            values = source.tensor(name, tuple(sharded.shape), device=rank.device)
            rank.beat()
            slices = tuple(
                slice(start, start + size) for start, size in zip(offset, shape, strict=True)
            )
            if 0 not in shape:
                sharded.to_local().copy_(values[slices])
            del values
    rebuild_buffers(module)
