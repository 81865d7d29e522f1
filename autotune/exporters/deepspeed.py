"""DeepSpeed's JSON: the backend's rendering of the measured plan, loaded by DeepSpeed itself.

The backend renders the form for a trainer, whose ``gradient_accumulation_steps`` make the same
cut as the measured schedule; the measured engine had accumulation 1 and was told the last
micro-step (``backends/deepspeed.py``). All else is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from autotune.backends import deepspeed as rendering
from autotune.backends.base import backend_of
from autotune.contract.command import PARAM, placeholders, text_of
from autotune.contract.plan import CommandWorkload, Plan
from autotune.errors import InputError, NothingToExportError
from autotune.exporters import (
    batching,
    checkpoint_code,
    environment,
    exactness,
    finetuning,
    kernels,
)
from autotune.exporters.asking import ask, is_installed
from autotune.exporters.base import ExportRequest, ExportResult

_BACKENDS: Final = ("zero3", "deepspeed")
_ACCUMULATION: Final = (
    "gradient_accumulation_steps is what a trainer needs; the measured engine had 1 and was told "
    "which micro-step is the last one, which makes the same cut"
)


def export(request: ExportRequest) -> ExportResult:
    """Return the JSON of a ZeRO trial; see :class:`autotune.exporters.base.Exporter`."""
    plan = request.plan
    if request.target_version is not None:
        raise InputError(
            "--target-version is for --format accelerate: this file is loaded by the installed "
            "deepspeed"
        )
    if plan.backend not in _BACKENDS:
        raise NothingToExportError(
            f"trial {request.trial}, the best of study {request.contents.study.name!r}, ran under "
            f"{plan.backend}, which DeepSpeed's JSON cannot say",
            hint="--format accelerate writes its results, as a YAML with code beside it",
        )
    backend = backend_of(plan.backend)
    is_command = isinstance(plan.workload, CommandWorkload)
    if is_command and backend.placeholder not in _placeholders(plan):
        raise NothingToExportError(
            f"the command of study {request.contents.study.name!r} reads no DeepSpeed file, so "
            "none was measured",
            hint="'autotune report STUDY --json' has its settings under best.config",
        )
    rendered = exactness.exact(backend.render(plan), backend.knobs)
    _compare_with_run(request, rendered)
    text = exactness.json_text(rendered)
    about = _about(request)
    variables, said = environment.companion(request, request.file_name, about)
    switch, switched = checkpoint_code.companion(plan, request.file_name, about)
    version = load_in_deepspeed(rendered, plan.topology.processes)
    by_tokens = plan.config.get("workload.max_tokens") is not None
    return ExportResult(
        files={
            request.file_name: text,
            **kernels.files(plan, request.file_name, about),
            **switch,
            **variables,
        },
        notes=(
            *switched,
            *said,
            *_notes(request, rendered, version),
            *kernels.notes(plan, request.file_name),
        ),
        adaptations=() if by_tokens or is_command else (_ACCUMULATION,),
        losses=_arguments(plan) if is_command else _losses(plan, rendered),
        checked_with=None if version is None else f"deepspeed {version}",
    )


def _about(request: ExportRequest) -> str:
    return f"trial {request.trial} of autotune's study {request.contents.study.name}"


def _placeholders(plan: Plan) -> set[str]:
    assert isinstance(plan.workload, CommandWorkload)
    return {name for argument in plan.workload.command for name in placeholders(argument)}


def _arguments(plan: Plan) -> tuple[str, ...]:
    """Return what the measured command was told by arguments and not by its JSON."""
    named = sorted(name.removeprefix(PARAM) for name in _placeholders(plan))
    outside = [
        f"{name}={text_of(plan.config[name])}"
        for name in named
        if name in plan.config and name != "workload.micro_batch"
        and not name.startswith(f"{plan.backend}.")
    ]  # fmt: skip
    return (f"arguments of the command: {', '.join(outside)}",) if outside else ()


def _losses(plan: Plan, rendered: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what was measured and cannot be said in the JSON."""
    lost = [*batching.losses(plan)]
    if not lost:
        return ()
    batch, written = plan.workload.global_batch, rendered["train_batch_size"]
    if written != batch:
        lost.append(
            f"the global batch of {batch} samples (train_batch_size is {written}: "
            f"{plan.topology.processes} processes do not divide {batch})"
        )
    return tuple(lost)


def _compare_with_run(request: ExportRequest, rendered: Mapping[str, Any]) -> None:
    """Refuse values that differ from what was read back in the measured engine."""
    assert request.outcome.measurement is not None, "the chosen trial was measured"
    written = rendering.stated(rendered["zero_optimization"])
    for name, value in request.outcome.measurement.read_back.items():
        owner, _, key = name.partition(".")
        if owner == request.plan.backend and key in written and written[key] != value.actual:
            raise NothingToExportError(
                f"{name} would be written as {written[key]!r}, but the measured engine had "
                f"{value.actual!r}",
                hint="this autotune renders another file than the one that ran: search again",
            )


def _notes(
    request: ExportRequest, rendered: Mapping[str, Any], version: str | None
) -> tuple[str, ...]:
    plan = request.plan
    notes = [*batching.notes(plan, "this JSON, whose batch sizes take one row at a time")]
    checkpointing = plan.config.get("workload.activation_checkpointing")
    if isinstance(plan.workload, CommandWorkload) and checkpointing not in (None, "none"):
        notes.append(
            f"activation checkpointing ({checkpointing}) is switched on in the model, not by this "
            "JSON"
        )
    if plan.config.get(f"{plan.backend}.offload_optimizer", "none") != "none":
        notes.append(
            "offloaded state is stepped by torch's AdamW on the CPU, as measured; without "
            "torch_adam DeepSpeed would compile its own, which rounds in another way"
        )
    if rendered.get("compile", {}).get("deepcompile"):
        notes.append(
            "compile.deepcompile does nothing until engine.compile() is called, once, after "
            "deepspeed.initialize, as in the measured trial: a trainer that does not call it runs "
            "without"
        )
    notes += [*leaf_notes(request), *finetuning.notes(plan)]
    if not isinstance(plan.workload, CommandWorkload):
        arguments = _training_arguments(rendered)
        said = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        notes.append(f"transformers' Trainer takes the file only beside TrainingArguments({said})")
    if version is None:
        notes.append("deepspeed is not installed here, so the file was not loaded by it")
    return tuple(notes)


def leaf_modules(request: ExportRequest) -> list[str]:
    """Return the classes that the measured trial gathered as a whole."""
    assert request.outcome.measurement is not None, "the chosen trial was measured"
    return list(request.outcome.measurement.notes.get("z3_leaf_modules") or ())


def leaf_notes(request: ExportRequest) -> tuple[str, ...]:
    """Say what to do about :func:`leaf_modules`, which the JSON does not name."""
    leaves = leaf_modules(request)
    if not leaves:
        return ()
    return (
        f"experts are gathered as a whole ({', '.join(leaves)}): the JSON says it as "
        "zero_optimization.leaf_module; for a DeepSpeed that does not know it, call "
        f"set_z3_leaf_modules(model, {leaves}) of deepspeed.utils before the engine starts",
    )


def load_in_deepspeed(rendered: Mapping[str, Any], processes: int) -> str | None:
    """Load the configuration in DeepSpeed's own class and compare what it understood.

    Returns:
        DeepSpeed's version, or ``None`` if it is not installed.

    Raises:
        NothingToExportError: DeepSpeed refuses the configuration or understands another value.
        EnvironmentFault: DeepSpeed is installed and cannot be imported.
    """
    if not is_installed("deepspeed"):
        return None
    answer = ask("deepspeed", {"config": rendered, "processes": processes})
    if answer["refused"] is not None:
        raise NothingToExportError(
            f"deepspeed {answer['version']} refuses the configuration: {answer['refused']}"
        )
    if answer["differences"]:
        raise NothingToExportError(
            f"deepspeed {answer['version']} understands the file in another way: "
            + "; ".join(answer["differences"])
        )
    return str(answer["version"])


def _training_arguments(rendered: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``TrainingArguments`` must say beside a DeepSpeed JSON.

    transformers compares these with the file and stops at a difference
    (``integrations/deepspeed.py``, ``trainer_config_process``).
    """
    adam = rendered["optimizer"]["params"]
    return {
        "per_device_train_batch_size": rendered["train_micro_batch_size_per_gpu"],
        "gradient_accumulation_steps": rendered["gradient_accumulation_steps"],
        "learning_rate": adam["lr"],
        "weight_decay": adam["weight_decay"],
        "adam_beta1": adam["betas"][0],
        "adam_beta2": adam["betas"][1],
        "adam_epsilon": adam["eps"],
        "max_grad_norm": rendered["gradient_clipping"],
        "bf16": rendered["bf16"]["enabled"],
    }
