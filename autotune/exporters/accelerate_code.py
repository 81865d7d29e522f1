"""Python text for what accelerate's YAML has no field for: the companion of an export.

The text holds the measured values as constants and does what the backend's engine did
(``backends/fsdp2_engine.py``). It needs torch and accelerate only. ``fsdp2_prepare_model`` of
accelerate leaves a model that is sharded already as it is, so the code shards it first.
"""

from __future__ import annotations

import pprint
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from autotune.backends import deepspeed
from autotune.contract.plan import Plan
from autotune.exporters import checkpoint_code

_TYPES: Final = {"fp32": "torch.float32", "bf16": "torch.bfloat16"}

_FSDP2: Final = '''
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

{constants}

def shard(accelerator, model):
    """Shard a transformers model as it was measured; returns it.

    Call it after ``Accelerator()`` and before the optimizer is made; then
    ``accelerator.prepare(model, optimizer)`` takes the model as it is.
    """
    plugin = getattr(getattr(accelerator, "state", None), "fsdp_plugin", None)
    if plugin is not None:
        # Units and checkpointing are made below; accelerate's own search would miss the layers,
        # whose class fully_shard renames.
        plugin.auto_wrap_policy = None
        plugin.activation_checkpointing = False
    _hold(model)
    _checkpoint(model)
    units = _units(model)
    mesh = _mesh(accelerator.device.type, torch.distributed.get_world_size())
    policy = MixedPrecisionPolicy(
        param_dtype=PARAM_DTYPE, reduce_dtype=REDUCE_DTYPE, cast_forward_inputs=True
    )
    for unit in units:
        target = unit[0] if len(unit) == 1 else unit
        fully_shard(
            target, mesh=mesh, mp_policy=policy, reshard_after_forward=RESHARD_AFTER_FORWARD
        )
    root = False if RESHARD_AFTER_FORWARD is False else None
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=root)
    heads = [unit[0] for unit in units]
    _set_prefetch(model, heads)
    _set_rest(model, heads)
    return model


def before_backward(model, last):
    """Call it before each backward; ``last``: whether the update follows it."""
    if GRADIENT_SYNC == "last":
        model.set_requires_gradient_sync(last)
    elif GRADIENT_SYNC == "scatter":
        model.set_requires_all_reduce(last)
    if not RESHARD_AFTER_BACKWARD:
        model.set_reshard_after_backward(last)


def _mesh(device, world):
    if REPLICATE > 1:
        shape = (REPLICATE, world // REPLICATE)
        return init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard"))
    return init_device_mesh(device, (world,))


def _set_rest(model, heads):
    if SEPARATE_REDUCE_SCATTER_GROUP:
        model.set_separate_reduce_scatter_group(True)
    if REDUCE_SCATTER_INPUT_BUFFERS > 1:
        model.set_reduce_scatter_max_input_buffers(REDUCE_SCATTER_INPUT_BUFFERS)
    for head in [model, *heads]:
        if FORCE_SUM_REDUCTION:
            head.set_force_sum_reduction_for_comms(True)
        if ALLOCATE_FROM_PROCESS_GROUP:
            head.set_allocate_memory_from_process_group_for_comm(True)
    if WRAP_EMBEDDINGS and not UNSHARD_IN_BACKWARD:
        heads[0].set_unshard_in_backward(False)
    if KEEP_LAST_UNIT:
        heads[-1].set_reshard_after_forward(False, recurse=False)


def _units(model):
    layers = list(model.get_decoder().layers)
    starts = range(0, len(layers), LAYERS_PER_UNIT)
    units = [layers[start : start + LAYERS_PER_UNIT] for start in starts]
    if WRAP_EMBEDDINGS:
        units = [[model.get_input_embeddings()], *units, [model.get_output_embeddings()]]
    return units


def _set_prefetch(root, heads):
    if FORWARD_PREFETCH:
        root.set_modules_to_forward_prefetch(heads[:FORWARD_PREFETCH])
        for index, head in enumerate(heads):
            ahead = heads[index + 1 : index + 1 + FORWARD_PREFETCH]
            if ahead:
                head.set_modules_to_forward_prefetch(ahead)
    if BACKWARD_PREFETCH == 0:
        for head in [root, *heads]:
            head.set_modules_to_backward_prefetch([head])
    elif BACKWARD_PREFETCH > 1:
        root.set_modules_to_backward_prefetch(heads[::-1][:BACKWARD_PREFETCH])
        for index, head in enumerate(heads):
            behind = heads[:index][::-1][:BACKWARD_PREFETCH]
            if behind:
                head.set_modules_to_backward_prefetch(behind)
'''

_DDP: Final = '''
import torch
from accelerate.utils import DistributedDataParallelKwargs

{constants}

def kwargs_handlers():
    """What ``Accelerator(kwargs_handlers=...)`` needs for the measured DDP arguments."""
    return [DistributedDataParallelKwargs(**DDP)]


def as_measured(accelerator, model):
    """Give a transformers model the measured number formats and checkpointing; returns it.

    Call it before the optimizer is made; then ``accelerator.prepare(model, optimizer)``.
    """
    _hold(model)
    _checkpoint(model)
    if COMPUTE_DTYPE != MASTER_DTYPE:
        # Instead of accelerate's autocast, which decides the format of each operation.
        accelerator.native_amp = False
        _compute_on_copy(model)
    return model


def _compute_on_copy(model):
    """Compute each forward and backward on a rounded copy; gradients reach the weights cast back.

    The copies lie in the modules' own dictionaries, which hides the weights from attribute access
    and from nothing else, and go when backward has passed the last of them.
    """
    places = [
        (owner, name, weight)
        for owner in model.modules()
        for name, weight in owner.named_parameters(recurse=False)
        if weight.is_floating_point()  # packed ones are unpacked in their own product
    ]
    waiting = set()

    def drop():
        for owner, name, _ in places:
            owner.__dict__.pop(name, None)

    def passed(weight):
        waiting.discard(weight)
        if not waiting:
            drop()

    def make(_model, _arguments):
        copies = {{}}
        for owner, name, weight in places:
            if weight not in copies:
                copies[weight] = weight.to(COMPUTE_DTYPE)
            owner.__dict__[name] = copies[weight]
        for weight, copy in copies.items():
            if copy.requires_grad:
                waiting.add(weight)
                copy.register_hook(lambda _gradient, weight=weight: passed(weight))

    model.register_forward_pre_hook(make)
'''


_HOLD: Final = """

def _hold(model):
    # Not model.to(), which would round the rotary frequencies, too.
    for weight in model.parameters():
        weight.data = weight.data.to(MASTER_DTYPE)
"""

_ADAPTERS: Final = '''

def adapted(model):
    """Freeze a transformers model and add the measured adapters; returns peft's model."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(**LORA))
    if USE_REENTRANT:
        # Such a recomputation trains nothing in a layer whose input has no gradient.
        model.enable_input_require_grads()
    return model


def _hold(model):
    """What is trained in the format of the optimizer's weights, the rest in that of compute."""
    for weight in model.parameters():
        if weight.is_floating_point():
            weight.data = weight.data.to(MASTER_DTYPE if weight.requires_grad else FROZEN_DTYPE)
'''


def module_name(yaml_name: str) -> str:
    """Name of the companion module: a legal one, and never that of a package (``accelerate``)."""
    stem = re.sub(r"\W", "_", Path(yaml_name).stem, flags=re.ASCII)
    return f"{'_' if stem[:1].isdigit() else ''}{stem}_setup"


def fsdp2(plan: Plan, rendered: Mapping[str, Any], about: str) -> str:
    """Return the companion of an FSDP2 export.

    Args:
        plan: The measured plan.
        rendered: What the backend rendered of it.
        about: Where it comes from, for the first line.
    """
    knobs, mixed = rendered["fully_shard"], rendered["mixed_precision"]
    values: dict[str, str] = {
        **{key.upper(): repr(value) for key, value in knobs.items()},
        "PARAM_DTYPE": _TYPES[mixed["param_dtype"]],
        "REDUCE_DTYPE": _TYPES[mixed["reduce_dtype"]],
        **_work(plan, rendered),
    }
    code = checkpoint_code.of(plan) + _hold(rendered)
    return _head(about) + _FSDP2.format(constants=_constants(values)) + code


def ddp(plan: Plan, rendered: Mapping[str, Any], arguments: Mapping[str, Any], about: str) -> str:
    """Return the companion of a DDP export; as :func:`fsdp2`.

    Args:
        plan: The measured plan.
        rendered: What the backend rendered of it.
        arguments: DDP's arguments, those that accelerate takes.
        about: Where it comes from, for the first line.
    """
    values = {
        "DDP": pprint.pformat(dict(arguments), width=90),
        "COMPUTE_DTYPE": _TYPES[rendered["precision"]["compute_dtype"]],
        **_work(plan, rendered),
    }
    code = checkpoint_code.of(plan) + _hold(rendered)
    return _head(about) + _DDP.format(constants=_constants(values)) + code


def _hold(rendered: Mapping[str, Any]) -> str:
    """The functions of a companion that hold weights in their formats, and add adapters."""
    return _ADAPTERS if "lora" in rendered else _HOLD


def _head(about: str) -> str:
    return f'"""What accelerate\'s YAML has no field for, as measured: {_plain(about)}."""\n'


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9 ._'-]", "_", text)


def _work(plan: Plan, rendered: Mapping[str, Any]) -> dict[str, str]:
    """Constants for the script: weights, checkpointing, batch sizes, clipping, optimizer."""
    sizes = deepspeed.batch_sizes(plan)
    adam = {key: value for key, value in rendered["optimizer"].items() if key != "type"}
    adam["betas"] = tuple(adam["betas"])
    by_rows = {
        "MICRO_BATCH": repr(sizes["train_micro_batch_size_per_gpu"]),
        "GRADIENT_ACCUMULATION_STEPS": repr(sizes["gradient_accumulation_steps"]),
    }
    by_tokens = plan.config.get("workload.max_tokens")
    return {
        "MASTER_DTYPE": _TYPES[rendered["master_dtype"]],
        **_adapters(rendered),
        **checkpoint_code.constants(plan),
        "GLOBAL_BATCH": repr(plan.training.global_batch),
        **(by_rows if by_tokens is None else {"MAX_TOKENS": repr(by_tokens)}),
        "GRADIENT_CLIPPING": repr(rendered["gradient_clipping"]),
        "ADAMW": pprint.pformat(adam, width=90),
    }


def _adapters(rendered: Mapping[str, Any]) -> dict[str, str]:
    if "lora" not in rendered:
        return {}
    return {
        "FROZEN_DTYPE": _TYPES[rendered["frozen_dtype"]],
        "LORA": pprint.pformat(rendered["lora"], width=90),
    }


def _constants(values: Mapping[str, str]) -> str:
    return "\n".join(f"{name} = {value}" for name, value in values.items()) + "\n"
