"""Activation checkpointing in exports: what a trainer's own switch says, and code for the rest.

transformers' ``TrainingArguments`` can say that every layer recomputes and in which mode; which
layers, and what is kept, is said by a few lines that do what ``models/checkpointing.py`` did.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from autotune.backends import recompute
from autotune.contract.plan import CommandWorkload, Plan
from autotune.knobs.recomputed import ATTENTIONS, PRODUCTS

_ENABLE: Final = """

def _checkpoint(model):
    if ACTIVATION_CHECKPOINTING == "none":
        return
    arguments = {"use_reentrant": USE_REENTRANT}
    if ACTIVATION_CHECKPOINTING == "selective":
        arguments["context_fn"] = _selective_contexts
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=arguments)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=arguments)
    for index, layer in enumerate(model.get_decoder().layers):
        layer.gradient_checkpointing = index % CHECKPOINT_EVERY == 0
"""
_SELECTIVE: Final = '''

def _selective_contexts():
    """Keeps matrix products and attention; all else of a layer is computed again."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    keep = {getattr(torch.ops.aten, name).default for name in KEPT if hasattr(torch.ops.aten, name)}
    flex = getattr(torch.ops.higher_order, "flex_attention", None)
    varlen = getattr(getattr(torch.ops, "torch_attn", None), "_varlen_attn", None)
    keep |= {flex, getattr(varlen, "default", None)} - {None}

    def policy(_context, function, *_arguments, **_named):
        return CheckpointPolicy.MUST_SAVE if function in keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
'''
_ALONE: Final = '''"""Activation checkpointing as it was measured: {about}."""
import torch

{constants}

def enable(model):
    """Switch it on in a transformers model, before the engine takes it."""
    _checkpoint(model)
'''


def constants(plan: Plan) -> dict[str, str]:
    """Constants of a companion, name to text."""
    said = recompute.rendered(plan.config)
    found: dict[str, Any] = {
        "ACTIVATION_CHECKPOINTING": said["mode"],
        "CHECKPOINT_EVERY": said.get("every", 1),
        "USE_REENTRANT": said.get("use_reentrant", False),
    }
    if said["mode"] == "selective":
        found["KEPT"] = (*PRODUCTS, *ATTENTIONS)
    return {name: repr(value) for name, value in found.items()}


def of(plan: Plan) -> str:
    """The functions of a companion that switch it on."""
    selective = recompute.rendered(plan.config)["mode"] == "selective"
    return _ENABLE + (_SELECTIVE if selective else "")


def words(plan: Plan) -> str:
    """``selective, every 2 layers``."""
    said = recompute.rendered(plan.config)
    parts = [said["mode"]]
    if said.get("every", 1) > 1:
        parts.append(f"every {said['every']} layers")
    if said.get("use_reentrant"):
        parts.append("use_reentrant true")
    return ", ".join(parts)


def is_plain(plan: Plan) -> bool:
    """Whether a trainer's own switch says it all: every layer, and nothing kept."""
    said = recompute.rendered(plan.config)
    return said["mode"] in ("none", "full") and said.get("every", 1) == 1


def companion(plan: Plan, main: str, about: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return a file that switches it on where no argument can say it, and what to do about it.

    Args:
        plan: The measured plan.
        main: Name of the main file.
        about: Where it comes from.
    """
    said = recompute.rendered(plan.config)
    if said["mode"] == "none" or isinstance(plan.workload, CommandWorkload):
        return {}, ()
    if is_plain(plan):
        arguments = (
            "gradient_checkpointing=True, "
            f"gradient_checkpointing_kwargs={{'use_reentrant': {said['use_reentrant']}}}"
        )
        return {}, (
            f"activation checkpointing ({words(plan)}) is switched on in the model, not by this "
            f"file: TrainingArguments({arguments})",
        )
    stem = "".join(c if c.isalnum() else "_" for c in Path(main).stem)
    name = f"{stem}_checkpointing"
    values = "\n".join(f"{key} = {value}" for key, value in constants(plan).items())
    plain = "".join(c if c.isalnum() or c in " ._'-" else "_" for c in about)
    text = _ALONE.format(about=plain, constants=values + "\n") + of(plan)
    return {f"{name}.py": text}, (
        f"activation checkpointing ({words(plan)}) is more than a trainer's switch can say: "
        f"'from {name} import enable' and 'enable(model)' before the engine takes the model, with "
        "the trainer's own gradient_checkpointing off",
    )
