"""Accelerate's YAML for ``accelerate launch --config_file``, loaded by accelerate itself.

Facts are from accelerate 1.15 (``commands/launch.py``, ``commands/config/config_args.py``,
``utils/dataclasses.py``):

* DeepSpeed: the settings live in the JSON beside the YAML, which is the ``deepspeed`` export.
  The YAML may only name it and say ``zero3_init_flag``: precision, accumulation, clipping, stage
  or offload in it stop the launch (``DeepSpeedPlugin._deepspeed_config_checks``).
* FSDP2 and DDP: the YAML says what accelerate has a field for. All else that was measured is in a
  Python file beside it, ready to call (``exporters/accelerate_code.py``).
* Text such as ``no`` is quoted, so that it is text again when the file is read.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from autotune.backends.base import backend_of
from autotune.contract.plan import CommandWorkload, Plan
from autotune.errors import InputError, NothingToExportError
from autotune.exporters import accelerate_code, deepspeed, exactness
from autotune.exporters.accelerate_check import check_in_accelerate
from autotune.exporters.base import ExportRequest, ExportResult

_OLDEST: Final = (0, 20)
"""From here on the top-level keys that are written are known to accelerate."""
_FSDP2_SINCE: Final = (1, 6)
"""First accelerate with ``fsdp_version`` and a boolean ``fsdp_reshard_after_forward``."""
_DDP_ARGUMENTS: Final = frozenset(
    {"bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters"}
)
"""Fields of ``DistributedDataParallelKwargs`` that are knobs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Part:
    """What one backend adds to the YAML."""

    settings: dict[str, Any]
    files: dict[str, str]
    """Companion files, name to text."""
    notes: tuple[str, ...] = ()
    adaptations: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    checked_with: str | None = None
    """What loaded the companion."""


def export(request: ExportRequest) -> ExportResult:
    """Return YAML and companion; see :class:`autotune.exporters.base.Exporter`."""
    name = _main_name(request)
    target = _version(request.target_version)
    plan = request.plan
    if isinstance(plan.workload, CommandWorkload):
        raise NothingToExportError(
            f"study {request.contents.study.name!r} tuned a command of its own, which starts its "
            "processes itself",
            hint="--format deepspeed writes the file that the command was given",
        )
    part = _part(request, name)
    if target is not None and plan.backend == "fsdp2" and target < _FSDP2_SINCE:
        raise NothingToExportError(
            f"accelerate {request.target_version} has no FSDP version 2, which trial "
            f"{request.trial} was measured under: its file would start another engine",
            hint="accelerate 1.6 is the first that can say it",
        )
    text = _text(request, {**part.settings, **_machines(plan)})
    files = {name: text, **part.files}
    version = check_in_accelerate(files, name, _expected(plan, part))
    return ExportResult(
        files=files,
        notes=(*part.notes, *_machine_notes(plan), *_check_notes(request, version)),
        adaptations=part.adaptations,
        losses=part.losses,
        checked_with=" and ".join(
            filter(None, (version and f"accelerate {version}", part.checked_with))
        )
        or None,
    )


def _main_name(request: ExportRequest) -> str:
    path = Path(request.file_name)
    if path.suffix in (".yaml", ".yml"):
        return request.file_name
    if request.folder is None:
        return path.with_suffix(".yaml").name
    raise InputError(
        f"accelerate takes {request.file_name} for JSON or does not know it: the file is YAML",
        hint=f"give a name such as -o {path.with_suffix('.yaml')}",
    )


def _version(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)\.(\d+)(\.\w+)*", text)
    if match is None:
        raise InputError(f"--target-version {text!r} is no version", hint="write it like 1.6.0")
    version = (int(match[1]), int(match[2]))
    if version < _OLDEST:
        raise InputError(
            f"accelerate {text} is too old to be written for", hint="the oldest is 0.20.0"
        )
    return version


def _part(request: ExportRequest, name: str) -> _Part:
    plan = request.plan
    if plan.backend == "fsdp2":
        return _fsdp2(request, name)
    if plan.backend == "ddp":
        return _ddp(request, name)
    if "zero_optimization" in backend_of(plan.backend).render(plan):
        return _deepspeed(request, name)
    raise NothingToExportError(
        f"trial {request.trial}, the best of study {request.contents.study.name!r}, ran under "
        f"{plan.backend}, which accelerate's file cannot say"
    )


def _deepspeed(request: ExportRequest, name: str) -> _Part:
    companion = f"{Path(name).stem}.deepspeed.json"
    made = deepspeed.export(dataclasses.replace(request, file_name=companion, target_version=None))
    place = companion if request.folder is None else str(request.folder.absolute() / companion)
    stage = backend_of(request.plan.backend).render(request.plan)["zero_optimization"]["stage"]
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
    return _Part(
        settings={
            "distributed_type": "DEEPSPEED",
            "deepspeed_config": {
                "deepspeed_config_file": place,
                "zero3_init_flag": stage == 3,
            },
        },
        files={companion: made.files[companion]},
        notes=(where, dummy, *made.notes),
        adaptations=made.adaptations,
        losses=made.losses,
        checked_with=made.checked_with,
    )


def _fsdp2(request: ExportRequest, name: str) -> _Part:
    plan = request.plan
    _compare_with_run(request)
    rendered = backend_of("fsdp2").render(plan)
    knobs = rendered["fully_shard"]
    layer = layer_class(plan.training.model.family)
    code = accelerate_code.module_name(name)
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
    return _Part(
        settings={
            "distributed_type": "FSDP",
            "mixed_precision": _mixed_precision(plan),
            "fsdp_config": fsdp,
        },
        files={f"{code}.py": accelerate_code.fsdp2(plan, rendered, _about(request))},
        notes=(
            f"accelerate has no field for {', '.join(_beyond_accelerate(rendered))}: the "
            f"YAML alone runs accelerate's own, 'from {code} import shard' in your script and "
            "'model = shard(accelerator, model)' before the optimizer and prepare give what was "
            "measured",
            *_batch_notes(plan, code),
        ),
        losses=_token_losses(plan),
    )


def _beyond_accelerate(rendered: Mapping[str, Any]) -> list[str]:
    """What of the measured engine accelerate 1.15 cannot be told, in words."""
    knobs, mixed = rendered["fully_shard"], rendered["mixed_precision"]
    native = {"layers_per_unit": 1, "forward_prefetch": 0, "backward_prefetch": 1}
    found = [f"{key}={knobs[key]}" for key, own in native.items() if knobs[key] != own]
    if not isinstance(knobs["reshard_after_forward"], bool):
        found.append(f"reshard_after_forward={knobs['reshard_after_forward']}")
    # fsdp2_prepare_model always makes units of the embedding and of norm and head.
    found.append(f"wrap_embeddings={str(knobs['wrap_embeddings']).lower()}")
    if mixed["reduce_dtype"] != mixed["param_dtype"]:
        found.append(f"reduction in {mixed['reduce_dtype']}")
    return found


def _ddp(request: ExportRequest, name: str) -> _Part:
    plan = request.plan
    _compare_with_run(request)
    measured = {
        key: value
        for full_name, value in sorted(plan.config.items())
        for owner, _, key in [full_name.partition(".")]
        if owner == "ddp" and value is not None
    }
    said = {key: value for key, value in measured.items() if key in _DDP_ARGUMENTS}
    if isinstance(said.get("bucket_cap_mb"), float) and said["bucket_cap_mb"].is_integer():
        said["bucket_cap_mb"] = int(said["bucket_cap_mb"])
    unsaid = sorted(set(measured) - set(said))
    code = accelerate_code.module_name(name)
    return _Part(
        settings={
            # One process is no distributed run to accelerate.
            "distributed_type": "MULTI_GPU" if plan.topology.processes > 1 else "NO",
            "mixed_precision": _mixed_precision(plan),
        },
        files={f"{code}.py": accelerate_code.ddp(plan, said, _about(request))},
        notes=(
            f"accelerate's file has no field for DDP's arguments: 'from {code} import "
            "kwargs_handlers' and 'Accelerator(kwargs_handlers=kwargs_handlers())' give the "
            f"measured ones ({', '.join(f'{key}={value}' for key, value in said.items())})",
            *_batch_notes(plan, code),
        ),
        losses=(*_token_losses(plan), *(f"ddp.{key}={measured[key]}" for key in unsaid)),
    )


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


def _machines(plan: Plan) -> dict[str, Any]:
    topology = plan.topology
    return {
        "num_processes": topology.processes,
        "num_machines": topology.nodes,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
        "downcast_bf16": "no",
    }


def _machine_notes(plan: Plan) -> tuple[str, ...]:
    notes = []
    if plan.topology.nodes > 1:
        notes.append(
            "each machine needs its own machine_rank, and all of them main_process_ip and "
            "main_process_port: add them to the YAML or to the command line"
        )
    if plan.topology.device == "cpu":
        notes.append(
            "the study ran without a GPU; accelerate runs these engines on GPUs, one a process"
        )
    return tuple(notes)


def _check_notes(request: ExportRequest, version: str | None) -> tuple[str, ...]:
    if version is None:
        return ("accelerate is not installed here, so the file was not loaded by it",)
    if request.target_version not in (None, version):
        return (f"it was loaded by accelerate {version}, not by {request.target_version}",)
    return ()


def _batch_notes(plan: Plan, code: str) -> tuple[str, ...]:
    notes = [
        f"batch size, accumulation, optimizer and clipping are your script's: {code}.py holds the "
        "measured ones as constants"
    ]
    if plan.config.get("workload.max_tokens") is not None:
        notes.append(
            f"the measured cut by max_tokens={plan.config['workload.max_tokens']} is your data "
            "loader's to make"
        )
    return tuple(notes)


def _token_losses(plan: Plan) -> tuple[str, ...]:
    by_tokens = plan.config.get("workload.max_tokens") is not None
    return ("the cut of the global batch by tokens",) if by_tokens else ()


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


def _about(request: ExportRequest) -> str:
    return f"trial {request.trial} of autotune's study {request.contents.study.name}"


def _text(request: ExportRequest, settings: Mapping[str, Any]) -> str:
    """The YAML text, proved to read back equal in values and types."""
    # No setting may be 'auto': exact() refuses it.
    data = exactness.exact({"compute_environment": "LOCAL_MACHINE", **settings}, ())
    text = f"# {_about(request)}\n" + yaml.safe_dump(data, sort_keys=False, width=1000)
    assert exactness.same(yaml.safe_load(text), data), "a value changed on its way into YAML"
    return text


def _expected(plan: Plan, part: _Part) -> dict[str, Any]:
    """What accelerate must have understood, under the names of ``accelerate_loading``."""
    fsdp = part.settings.get("fsdp_config", {})
    deepspeed_section = part.settings.get("deepspeed_config", {})
    expected: dict[str, Any] = {
        "distributed_type": part.settings["distributed_type"],
        "num_processes": plan.topology.processes,
        "num_machines": plan.topology.nodes,
        "mixed_precision": part.settings.get("mixed_precision", "no"),
    }
    if fsdp:
        expected |= {
            "fsdp_version": 2,
            "reshard_after_forward": fsdp["fsdp_reshard_after_forward"],
            "activation_checkpointing": fsdp["fsdp_activation_checkpointing"],
            "state_dict_type": fsdp["fsdp_state_dict_type"],
        }
        if "fsdp_transformer_layer_cls_to_wrap" in fsdp:
            expected["layer_classes"] = [fsdp["fsdp_transformer_layer_cls_to_wrap"]]
    if deepspeed_section:
        expected |= {"zero3_init_flag": deepspeed_section["zero3_init_flag"]}
    return expected
