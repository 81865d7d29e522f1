"""What each engine adds to accelerate's YAML, and the companion that says the rest."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from autotune.backends import fsdp2 as fsdp2_backend
from autotune.backends import recompute
from autotune.backends.base import backend_of
from autotune.contract.plan import Plan
from autotune.errors import NothingToExportError
from autotune.exporters import (
    accelerate_code,
    batching,
    checkpoint_code,
    deepspeed,
    environment,
    exactness,
    finetuning,
    kernels,
)
from autotune.exporters.base import ExportRequest
from autotune.knobs.words import value_words

_LEAVES_SINCE: Final = (0, 30)
"""First accelerate with ``deepspeed_moe_layer_cls_names``."""
_DDP_FIELDS: Final = frozenset(
    {
        "bucket_cap_mb",
        "gradient_as_bucket_view",
        "static_graph",
        "find_unused_parameters",
        "broadcast_buffers",
    }
)
"""Fields of ``DistributedDataParallelKwargs``; one that a knob renders is measured."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """What one backend adds to the YAML."""

    settings: dict[str, Any]
    files: dict[str, str]
    """Companion files, name to text."""
    notes: tuple[str, ...] = ()
    adaptations: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    checked_with: str | None = None
    """What loaded the companion."""


def zero(request: ExportRequest, name: str, target: tuple[int, ...] | None) -> Part:
    """Return what a ZeRO configuration adds: the name of its JSON, and what none of it can say.

    Args:
        request: The export.
        name: Name of the YAML.
        target: Version of accelerate to write for; ``None`` for the installed one.
    """
    companion = f"{Path(name).stem}.deepspeed.json"
    made = deepspeed.export(dataclasses.replace(request, file_name=companion, target_version=None))
    place = companion if request.folder is None else str(request.folder.absolute() / companion)
    stage = backend_of(request.plan.backend).render(request.plan)["zero_optimization"]["stage"]
    section: dict[str, Any] = {"deepspeed_config_file": place, "zero3_init_flag": stage == 3}
    if request.plan.topology.nodes > 1:
        # Each machine starts its own processes, as the notes say; accelerate's default is pdsh.
        section["deepspeed_multinode_launcher"] = "standard"
    leaves, notes = deepspeed.leaf_modules(request), made.notes
    if leaves and (target is None or target >= _LEAVES_SINCE):
        section["deepspeed_moe_layer_cls_names"] = ",".join(leaves)
        notes = tuple(note for note in notes if note not in deepspeed.leaf_notes(request))
    where = (
        f"deepspeed_config_file is {companion}: start 'accelerate launch' in the folder that "
        "holds it, or write its whole path"
        if request.folder is None
        else f"deepspeed_config_file is the whole path {place}; change it if you move the files"
    )
    dummy = (
        "the JSON holds the optimizer, so the script passes accelerate.utils.DummyOptim to prepare "
        "(transformers' Trainer does that itself); its data loader's batch size must be "
        "train_micro_batch_size_per_gpu"
    )
    return Part(
        settings={"distributed_type": "DEEPSPEED", "deepspeed_config": section},
        files=made.files,
        notes=(where, dummy, *notes),
        adaptations=made.adaptations,
        losses=made.losses,
        checked_with=made.checked_with,
    )


def fsdp2(request: ExportRequest, name: str) -> Part:
    """Return accelerate's own fields, and code for what FSDP2 has beyond them."""
    plan = request.plan
    _compare_with_run(request)
    rendered = backend_of("fsdp2").render(plan)
    knobs = rendered["fully_shard"]
    layer = layer_class(plan.training.model.family)
    code = accelerate_code.module_name(name)
    variables, said = environment.companion(request, name, about(request))
    fsdp: dict[str, Any] = {
        "fsdp_version": 2,
        # A number (groups of so many processes) is no value of this field.
        "fsdp_reshard_after_forward": knobs["reshard_after_forward"] is not False,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        **({} if layer is None else {"fsdp_transformer_layer_cls_to_wrap": layer}),
        "fsdp_activation_checkpointing": _checkpoints(plan),
        "fsdp_offload_params": False,
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    return Part(
        settings={
            "distributed_type": "FSDP",
            "mixed_precision": _mixed_precision(plan),
            "fsdp_config": fsdp,
        },
        files={
            f"{code}.py": accelerate_code.fsdp2(plan, rendered, about(request)),
            **kernels.files(plan, name, about(request)),
            **variables,
        },
        notes=(
            f"accelerate has no field for {', '.join(_beyond_accelerate(plan, rendered))}: the "
            f"YAML alone runs accelerate's own, 'from {code} import shard' in your script and "
            "'model = shard(accelerator, model)' before the optimizer and prepare give what was "
            "measured",
            *_accumulation_notes(rendered, code),
            *said,
            *_batch_notes(plan, code, name),
        ),
        losses=batching.losses(plan),
    )


def _beyond_accelerate(plan: Plan, rendered: Mapping[str, Any]) -> list[str]:
    """What of the measured engine accelerate 1.15 cannot be told, in words."""
    knobs, mixed = rendered["fully_shard"], rendered["mixed_precision"]
    said = ("reshard_after_forward", "wrap_embeddings")
    found = [
        f"{key}={value_words(knobs[key])}"
        for key, own in fsdp2_backend.DEFAULTS.items()
        if key not in said and knobs[key] != own
    ]
    if not isinstance(knobs["reshard_after_forward"], bool):
        found.append(f"reshard_after_forward={knobs['reshard_after_forward']}")
    # fsdp2_prepare_model always makes units of the embedding and of norm and head.
    found.append(f"wrap_embeddings={str(knobs['wrap_embeddings']).lower()}")
    if mixed["reduce_dtype"] != mixed["param_dtype"]:
        found.append(f"reduction in {mixed['reduce_dtype']}")
    if not checkpoint_code.is_plain(plan) or recompute.rendered(plan.config).get("use_reentrant"):
        found.append(f"activation checkpointing ({checkpoint_code.words(plan)})")
    return found


def _accumulation_notes(rendered: Mapping[str, Any], code: str) -> tuple[str, ...]:
    """What the training loop has to do where its micro-steps are prepared in another way."""
    knobs = rendered["fully_shard"]
    if knobs["gradient_sync"] == "last" and knobs["reshard_after_backward"]:
        return ()
    return (
        f"between micro-steps: 'from {code} import before_backward' and "
        "'before_backward(model, last)' before each backward, without accelerate's own "
        "accumulate(), give what was measured",
    )


def ddp(request: ExportRequest, name: str) -> Part:
    """Return the bare YAML, and code for arguments, checkpointing and number formats."""
    plan = request.plan
    _compare_with_run(request)
    rendered = backend_of("ddp").render(plan)
    # Null leaves it to torch, as the handler does with what it is not told.
    measured = {key: value for key, value in rendered["ddp"].items() if value is not None}
    said = {key: value for key, value in measured.items() if key in _DDP_FIELDS}
    code = accelerate_code.module_name(name)
    handled = ", ".join(f"{key}={value}" for key, value in said.items())
    variables, setting = environment.companion(request, name, about(request))
    return Part(
        settings={
            # One process is no distributed run to accelerate.
            "distributed_type": "MULTI_GPU" if plan.topology.processes > 1 else "NO",
            "mixed_precision": _mixed_precision(plan),
        },
        files={
            f"{code}.py": accelerate_code.ddp(plan, rendered, said, about(request)),
            **kernels.files(plan, name, about(request)),
            **variables,
        },
        notes=(
            f"accelerate's file has no field for DDP's arguments: 'from {code} import "
            "kwargs_handlers, as_measured' and 'Accelerator(kwargs_handlers=kwargs_handlers())' "
            f"give the measured ones ({handled})",
            f"{_beyond_ddp(plan)}: 'model = as_measured(accelerator, model)' before the "
            "optimizer and prepare gives what was measured",
            *setting,
            *_batch_notes(plan, code, name),
        ),
        losses=(
            *batching.losses(plan),
            *(f"ddp.{key}={value}" for key, value in measured.items() if key not in said),
        ),
    )


def _beyond_ddp(plan: Plan) -> str:
    """What the YAML alone would do in another way, in words."""
    precision = plan.training.precision
    found = [f"leaves the weights in the format they are loaded in, not {precision.master}"]
    if precision.compute != precision.master:
        found.append("computes under autocast, which is near to what was measured and not equal")
    if _checkpoints(plan):
        found.append("does no activation checkpointing")
    return f"the YAML alone {'; '.join(found)}"


def _compare_with_run(request: ExportRequest) -> None:
    """Refuse values that differ from what was read back in the measured engine."""
    plan = request.plan
    assert request.outcome.measurement is not None, "the chosen trial was measured"
    for name, value in request.outcome.measurement.read_back.items():
        if name.partition(".")[0] != plan.backend or name not in plan.config:
            continue
        if not exactness.same(plan.config[name], value.actual):
            raise NothingToExportError(
                f"{name} would be written as {plan.config[name]!r}, but the measured engine had "
                f"{value.actual!r}",
                hint="search again",
            )


def _mixed_precision(plan: Plan) -> str:
    """``bf16`` where accelerate's own mixed precision (float32 weights) is meant, else ``no``."""
    precision = plan.training.precision
    return "bf16" if precision.compute == "bf16" and precision.master == "fp32" else "no"


def _checkpoints(plan: Plan) -> bool:
    return bool(plan.config.get("workload.activation_checkpointing", "none") != "none")


def _batch_notes(plan: Plan, code: str, name: str) -> tuple[str, ...]:
    return (
        f"batch size, accumulation, optimizer and clipping are your script's: {code}.py holds the "
        "measured ones as constants",
        *_adapter_notes(plan, code),
        *batching.notes(plan, "these files"),
        *kernels.notes(plan, name),
    )


def _adapter_notes(plan: Plan, code: str) -> tuple[str, ...]:
    if plan.training.lora is None:
        return ()
    return (
        f"'from {code} import adapted' and 'model = adapted(model)', before what is said above, "
        "add the measured adapters",
        *finetuning.notes(plan),
    )


def layer_class(family: str) -> str | None:
    """Return the name of a family's decoder layer, read from transformers' source without loading.

    ``None`` where it cannot be read: accelerate then takes the model's own ``_no_split_modules``,
    which is where it stands.
    """
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return None
    source = Path(spec.origin).parent / "models" / family / f"modeling_{family}.py"
    try:
        lists = re.findall(r"_no_split_modules = \[([^\]]*)\]", source.read_text("utf-8"))
    except OSError:
        return None
    names = {name for text in lists for name in re.findall(r"\w+", text)}
    layers = sorted(name for name in names if name.endswith("DecoderLayer"))
    return layers[0] if len(layers) == 1 else None


def about(request: ExportRequest) -> str:
    """Return where the files come from, for their first lines."""
    return f"trial {request.trial} of autotune's study {request.contents.study.name}"
