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

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from autotune.backends.base import backend_of
from autotune.contract.plan import CommandWorkload, Plan
from autotune.errors import InputError, NothingToExportError
from autotune.exporters import accelerate_engines as engines
from autotune.exporters import exactness
from autotune.exporters.accelerate_check import check_in_accelerate
from autotune.exporters.base import ExportRequest, ExportResult

_OLDEST: Final = (0, 20)
"""From here on the top-level keys that are written are known to accelerate."""
_FSDP2_SINCE: Final = (1, 6)
"""First accelerate with ``fsdp_version`` and a boolean ``fsdp_reshard_after_forward``."""


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
    part = _part(request, name, target)
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


def _part(request: ExportRequest, name: str, target: tuple[int, ...] | None) -> engines.Part:
    plan = request.plan
    if plan.backend == "fsdp2":
        return engines.fsdp2(request, name)
    if plan.backend == "ddp":
        return engines.ddp(request, name)
    if "zero_optimization" in backend_of(plan.backend).render(plan):
        return engines.zero(request, name, target)
    raise NothingToExportError(
        f"trial {request.trial}, the best of study {request.contents.study.name!r}, ran under "
        f"{plan.backend}, which accelerate's file cannot say"
    )


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


def _text(request: ExportRequest, settings: Mapping[str, Any]) -> str:
    """The YAML text, proved to read back equal in values and types."""
    # No setting may be 'auto': exact() refuses it.
    data = exactness.exact({"compute_environment": "LOCAL_MACHINE", **settings}, ())
    text = f"# {engines.about(request)}\n" + yaml.safe_dump(data, sort_keys=False, width=1000)
    assert exactness.same(yaml.safe_load(text), data), "a value changed on its way into YAML"
    return text


def _expected(plan: Plan, part: engines.Part) -> dict[str, Any]:
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
        expected |= {
            "zero3_init_flag": deepspeed_section["zero3_init_flag"],
            "moe_layer_classes": deepspeed_section.get("deepspeed_moe_layer_cls_names"),
        }
        if "deepspeed_multinode_launcher" in deepspeed_section:
            expected["multinode_launcher"] = deepspeed_section["deepspeed_multinode_launcher"]
    return expected
