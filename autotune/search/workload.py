"""The work of every trial of a study: model, samples, optimizer, precision."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from autotune.contract import codec, jsonfile
from autotune.contract.plan import CommandWorkload, Lora, Model, Samples, Topology, Workload
from autotune.data.samples import make_samples
from autotune.models import lora
from autotune.models.family import family_of
from autotune.models.resolve import resolve_model
from autotune.space.model import CommandSpec, WorkloadSpec
from autotune.space.search_space import SearchSpace

DISTINCT_BATCHES: Final = 4
"""Global batches in the cycle that every trial repeats."""


def command_workload(spec: CommandSpec) -> CommandWorkload:
    """Return the workload of a command."""
    return CommandWorkload(
        command=spec.command,
        global_batch=spec.global_batch,
        distinct_batches=DISTINCT_BATCHES,
        optimizer=spec.optimizer,
        precision=spec.precision,
    )


def make_workload(space: SearchSpace, *, data_folder: Path) -> Workload:
    """Return the workload that a space file states.

    Args:
        space: The space.
        data_folder: Where the tokens of a JSON Lines data set are written; nothing is written
            for drawn lengths.

    Raises:
        SpaceError: The model or the data cannot be used.
        EnvironmentFault: The hub cannot be reached, or the folder cannot be written.
    """
    spec = space.training
    with space.place("workload.model").blamed():
        model = _model(space, spec)
    with space.place(f"workload.finetune.{spec.finetune}.targets").blamed():
        adapters = _adapters(spec, model)
    with space.place("workload.data").blamed():
        samples = _samples(spec, model, data_folder)
    return Workload(
        model=model,
        finetune=spec.finetune,
        lora=adapters,
        global_batch=spec.global_batch,
        distinct_batches=DISTINCT_BATCHES,
        samples=samples,
        optimizer=spec.optimizer,
        precision=spec.precision,
    )


def context_of(
    workload: CommandWorkload | Workload, topology: Topology, environment_fingerprint: str
) -> str:
    """Return the digest of all that must be equal for two times to be comparable.

    Where the token file lies is left out: its hash is in, and a runs folder may be moved. So is
    where the hidden size was found.
    """
    work = codec.to_json(workload)
    if isinstance(workload, Workload):
        work["samples"]["token_file"] = None
        del work["model"]["hidden_size_from"]
        if workload.lora is None:
            del work["lora"]  # so are records that were made before there were adapters
    return jsonfile.digest(
        {
            "workload": work,
            "topology": codec.to_json(topology),
            "environment": environment_fingerprint,
        }
    )


def flops_per_iteration(workload: Workload) -> float:
    """Model FLOPs of a mean iteration: forward and backward of its real tokens."""
    lengths = workload.samples.lengths
    family = family_of(workload.model.family)
    adapters = None if workload.lora is None else workload.lora.num_parameters
    per_token = family.flops_per_token(workload.model.config, lengths, adapters)
    return per_token * sum(lengths) / workload.distinct_batches


def _adapters(spec: WorkloadSpec, model: Model) -> Lora | None:
    if spec.lora is None:
        return None
    family, stated = family_of(model.family), dataclasses.asdict(spec.lora)
    return lora.resolve(family, model.config, **stated)


def _model(space: SearchSpace, spec: WorkloadSpec) -> Model:
    """The model, under the name that the file has for it. A folder may lie beside the file."""
    beside = Path(space.file).absolute().parent / spec.model
    is_beside = spec.model.strip() and not _is_model(Path(spec.model)) and _is_model(beside)
    name = str(beside) if is_beside else spec.model
    return dataclasses.replace(resolve_model(name, load_weights=spec.load_weights), name=spec.model)


def _is_model(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file()
    except (OSError, ValueError):
        return False


def _samples(spec: WorkloadSpec, model: Model, data_folder: Path) -> Samples:
    data = spec.data
    return make_samples(
        lengths=data.lengths,
        jsonl=data.jsonl,
        tokenizer=data.tokenizer,
        max_length=data.max_length,
        seed=data.seed,
        num_samples=spec.global_batch * DISTINCT_BATCHES,
        vocab_size=family_of(model.family).vocab_size(model.config),
        folder=data_folder,
    )
