"""Settings that do not work together, learnt from one failure: no other launch has them.

What an error says of a configuration as a whole teaches little. Some errors are known to come from
few settings: those are named in the failure, and every configuration that has them all, live, is
ruled out without a launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from autotune.contract import errortexts
from autotune.contract.plan import CommandWorkload, Plan
from autotune.knobs.words import settings_words
from autotune.space.model import Config

_MODE: Final = "workload.activation_checkpointing"
_REENTRANT: Final = "workload.use_reentrant"
_COMPILE: Final = "kernel.compile"
_STAGE: Final = "deepspeed.zero_stage"
_RECOMPUTE_TYPE: Final = "CheckpointError"
_COMPILER_TYPES: Final = "torch._dynamo.exc."
_TOO_MANY: Final = "FailOnRecompileLimitHit"
"""Of the compiler, and a matter of how many shapes there are: nothing that two settings decide."""
_COMPILED: Final = (
    _MODE,
    _REENTRANT,
    "workload.batching",
    "kernel.attention",
    "kernel.linear_attention",
    "kernel.convolution",
    "kernel.norm",
    "kernel.rope",
    "kernel.mlp",
)
"""What decides which code a compiled layer has, and whether its shapes vary."""


def combination(plan: Plan, type_name: str, message: str) -> dict[str, Any]:
    """Return the settings, by full knob name, that a refusal comes from; empty if none is known.

    Args:
        plan: What ran.
        type_name: Qualified name of the exception's class.
        message: Its text.
    """
    if isinstance(plan.workload, CommandWorkload):
        return {}
    return _recomputed(plan, type_name, message) or _compiled(plan, type_name, message)


def _recomputed(plan: Plan, type_name: str, message: str) -> dict[str, Any]:
    """Backward met other tensors than forward left."""
    if plan.config.get(_MODE, "none") == "none":
        return {}
    is_recompute = type_name.rpartition(".")[2] == _RECOMPUTE_TYPE
    if errortexts.RECOMPUTED_SELECTIVELY.search(message):
        found = {_MODE: plan.config[_MODE]}
    elif is_recompute or errortexts.RECOMPUTED.search(message):
        found = {_REENTRANT: bool(plan.config.get(_REENTRANT))}
    else:
        return {}
    if plan.config.get(_COMPILE, "none") != "none":
        found[_COMPILE] = plan.config[_COMPILE]
    if _STAGE in plan.config:  # weights are whole below stage 3
        found[_STAGE] = plan.config[_STAGE]
    return found


def _compiled(plan: Plan, type_name: str, message: str) -> dict[str, Any]:
    """The compiler could not take a layer: with other settings it has other code to take.

    Of those the ones that the user tunes or sets are named; the others are the same in all trials.
    """
    if plan.config.get(_COMPILE, "none") == "none" or type_name.endswith(_TOO_MANY):
        return {}
    if not type_name.startswith(_COMPILER_TYPES) and not errortexts.COMPILER.search(message):
        return {}
    names = (_COMPILE, *(name for name in _COMPILED if name in plan.verify))
    return {name: plan.config[name] for name in names}


def words(plan: Plan, settings: Mapping[str, Any]) -> str:
    """``use_reentrant=false, compile=layer do not work together under fsdp2``."""
    named = settings_words({name.partition(".")[2]: value for name, value in settings.items()})
    if len(settings) > 1:
        text = f"{named} do not work together"
    else:
        frozen = plan.training.finetune != "full"
        text = f"{named} does not work" + (" with frozen weights" if frozen else "")
    return f"{text} under {plan.backend}"


def holds(settings: Mapping[str, Any], config: Config) -> bool:
    """Whether ``config`` has all of the settings, and none of them is dead in it."""
    return bool(settings) and all(
        name in config.values
        and name not in config.dead
        and type(config.values[name]) is type(value)
        and config.values[name] == value
        for name, value in settings.items()
    )
