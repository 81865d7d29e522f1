"""Is the plan in effect? What the running engine holds, beside what was asked for."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autotune.analysis import kernels
from autotune.backends.base import Engine
from autotune.contract.outcome import ReadBack, ReadBackLevel
from autotune.contract.plan import Plan
from autotune.knobs import environment
from autotune.models.family import family_of
from autotune.models.kernels import table
from autotune.worker import allocator
from autotune.worker.failures import NotInEffectError

if TYPE_CHECKING:
    import torch

    from autotune.data.packing import MicroBatch
    from autotune.data.stream import TokenStream


def read_engine(plan: Plan, engine: Engine) -> dict[str, ReadBack]:
    """Return the backend's knobs, environment, kernels and checkpointing, as they are now.

    Dead ones are left out: what an engine makes of a value that changes nothing is its own affair.
    """
    found = {**engine.read_back(), **_checkpointing(engine.module)}
    family = family_of(plan.training.model.family)
    for knob, choice in table.bound(family, engine.module).items():
        if choice:  # empty: the model has no layer of this type
            found[f"kernel.{knob}"] = (choice, "live")
    for name, asked in plan.config.items():
        owner, _, variable = name.partition(".")
        if owner != environment.OWNER:
            continue
        if variable == environment.ALLOCATOR:
            found[name] = (allocator.settings(asked), "live")
        else:
            found[name] = (_typed(os.environ.get(variable), asked), "environment")
    return {
        name: ReadBack(requested=plan.config[name], actual=actual, level=level)
        for name, (actual, level) in found.items()
        if name in plan.config and name not in plan.dead
    }


def require_trainable(plan: Plan, module: torch.nn.Module) -> None:
    """Check that as many parameters are trained as the workload says.

    Raises:
        NotInEffectError: More or fewer are.
    """
    # ZeRO-3 leaves an empty tensor in place of a parameter that is elsewhere.
    found = sum(
        int(getattr(parameter, "ds_numel", parameter.numel()))
        for parameter in module.parameters()
        if parameter.requires_grad
    )
    wanted = plan.training.num_trainable
    if found != wanted:
        raise NotInEffectError(
            f"workload.finetune: {plan.training.finetune} trains {wanted:,} parameters, and the "
            f"built model has {found:,} that are trained"
        )


def read_formats(plan: Plan, engine: Engine) -> dict[str, ReadBack]:
    """Return the number formats that the engine holds after an update, as ``precision.NAME``."""
    asked = dataclasses.asdict(plan.training.precision)
    asked["optimizer"] = asked["master"]
    return {
        f"precision.{name}": ReadBack(requested=asked[name], actual=actual, level="live")
        for name, actual in engine.formats().items()
    }


def read_schedule(plan: Plan, stream: TokenStream, rank: int) -> dict[str, ReadBack]:
    """Return the workload's knobs as the micro-batches of this rank have them."""
    shapes: list[tuple[int, int]] = []
    for index, batch in enumerate(plan.cut.batches):
        tensors = stream.micro_batches(index)
        steps = batch.ranks[rank].micro_steps
        shapes += [
            (int(tensor.input_ids.shape[0]), int(tensor.input_ids.shape[1]))
            for tensor, step in zip(tensors, steps, strict=True)
            if step.samples
        ]
    found: dict[str, Any] = {"workload.batching": _batching(plan)}
    if plan.cut.batching == "packed" and not _boundaries_are_told(plan, stream, rank):
        found["workload.batching"] = "padded"
    rows, limit = plan.config.get("workload.micro_batch"), plan.config.get("workload.max_tokens")
    if rows is not None:
        different = {count for count, _ in shapes} - {rows}
        found["workload.micro_batch"] = max(different, default=rows)
    if limit is not None:
        largest = max((count * length for count, length in shapes), default=0)
        found["workload.max_tokens"] = limit if largest <= limit else largest
    return {
        name: ReadBack(requested=plan.config[name], actual=actual, level="schedule")
        for name, actual in found.items()
        if name in plan.config
    }


def require_in_effect(plan: Plan, read_back: dict[str, ReadBack], *, owners: set[str]) -> None:
    """Check the knobs of ``owners`` that the plan wants verified.

    Raises:
        NotInEffectError: One differs, or could not be read; the message names all of them.
    """
    faults = []
    for name in plan.verify:
        if name.partition(".")[0] not in owners or plan.config.get(name) is None:
            continue
        entry = read_back.get(name)
        if entry is None:
            faults.append(f"{name} = {plan.config[name]!r} could not be read back")
        elif not entry.in_effect:
            faults.append(_differs(name, entry))
    if faults:
        raise NotInEffectError("; ".join(faults))


def require_formats(formats: dict[str, ReadBack]) -> None:
    """Check what :func:`read_formats` found: another number format is other work.

    Raises:
        NotInEffectError: One differs.
    """
    faults = [_differs(name, entry) for name, entry in formats.items() if not entry.in_effect]
    if faults:
        raise NotInEffectError("; ".join(faults))


def _differs(name: str, entry: ReadBack) -> str:
    return (
        f"{name} was set to {entry.requested!r}, but the engine has {entry.actual!r}"
        f" ({_LEVELS[entry.level]})"
    )


_LEVELS: dict[ReadBackLevel, str] = {
    "live": "its live state",
    "parsed": "its parsed configuration",
    "effect": "seen by what it does",
    "schedule": "the micro-steps that ran",
    "environment": "set in its process",
}


def require_updates(engine: Engine, iterations: int) -> None:
    """Check that each iteration ended with an update of the weights.

    At a small learning rate the losses of a few iterations are the same without them.

    Raises:
        NotInEffectError: The optimizer has counted fewer.
    """
    counted = engine.updates()
    if counted is not None and counted < iterations:
        raise NotInEffectError(
            f"the optimizer updated the weights {counted} times in {iterations} iterations"
        )


def require_same_kernels(plan: Plan, bound: Mapping[str, str]) -> None:
    """Check what layer types are bound to against the baseline.

    Raises:
        NotInEffectError: One of them is bound to something else.
    """
    problem = kernels.difference(bound, plan.numerics.implementations)
    if problem is not None:
        raise NotInEffectError(problem)


def _checkpointing(module: torch.nn.Module) -> dict[str, tuple[Any, ReadBackLevel]]:
    from autotune.models import checkpointing

    try:
        seen = checkpointing.found(module)
    except ValueError as error:
        return {"workload.activation_checkpointing": (str(error), "live")}
    found: dict[str, tuple[Any, ReadBackLevel]] = {
        "workload.activation_checkpointing": (seen.mode, "live")
    }
    if seen.mode != "none":
        found["workload.checkpoint_every"] = (seen.every, "live")
        found["workload.use_reentrant"] = (seen.reentrant, "live")
    return found


def _batching(plan: Plan) -> str:
    """Return the order in which the samples really stand, where it contradicts the plan."""
    lengths = plan.training.samples.lengths
    for batch in plan.cut.batches:
        steps = [rank.micro_steps for rank in batch.ranks]
        dealt = [step for turn in zip(*steps, strict=True) for step in turn]
        order = [index for step in dealt for index in step.samples]
        in_order = order == sorted(order)
        longest_first = all(lengths[a] >= lengths[b] for a, b in itertools.pairwise(order))
        if plan.cut.batching == "padded" and not in_order:
            return "sorted"
        if plan.cut.batching == "sorted" and not longest_first:
            return "padded"
    return plan.cut.batching


def _boundaries_are_told(plan: Plan, stream: TokenStream, rank: int) -> bool:
    """Whether each packed row says where its samples begin and end, in every form."""
    lengths = plan.training.samples.lengths
    for index, batch in enumerate(plan.cut.batches):
        tensors = stream.micro_batches(index)
        for tensor, step in zip(tensors, batch.ranks[rank].micro_steps, strict=True):
            ends = [*itertools.accumulate(lengths[sample] for sample in step.samples)]
            if not _told(tensor, ends, step.length):
                return False
    return True


def _told(tensor: MicroBatch, ends: list[int], length: int) -> bool:
    """Whether segments end at ``ends`` and, with the padding after them, at ``length``."""
    import torch

    if tensor.boundaries is None or tensor.position_ids is None:
        return False
    told = list(dict.fromkeys(tensor.boundaries.cu_seq_lens.tolist()))
    counted = torch.arange(length, device=tensor.position_ids.device)
    numbers, positions = tensor.boundaries.seq_idx[0], tensor.position_ids[0]
    changes = (numbers.diff() == 1).nonzero().flatten() + 1
    return (
        tensor.attention_mask is None
        and told[: len(ends) + 1] == [0, *ends]
        and told[-1] == length
        and [0, *changes.tolist(), length] == told
        and torch.equal(counted - torch.tensor(told, device=counted.device)[numbers], positions)
    )


def _typed(text: str | None, requested: Any) -> Any:
    """Return a variable's text as the type that was asked for, where it is that value."""
    if text is None or isinstance(requested, str):
        return text
    if isinstance(requested, bool):
        return requested if text == str(int(requested)) else text
    return requested if text == str(requested) else text
