"""What a kind of fine-tuning needs of the machine, checked before anything starts."""

from __future__ import annotations

import importlib.util
from typing import Final

from autotune.contract.plan import Finetune, Topology
from autotune.errors import EnvironmentFault

_NEEDS: Final[dict[Finetune, tuple[str, ...]]] = {
    "full": (),
    "lora": ("peft",),
    "qlora": ("peft", "bitsandbytes"),
}


def imported_once(finetune: Finetune) -> tuple[str, ...]:
    """The packages that a fork server may import for all ranks.

    bitsandbytes loads CUDA's libraries, so each rank imports it by itself, and peft with it.
    """
    return () if "bitsandbytes" in _NEEDS[finetune] else _NEEDS[finetune]


def check_finetuning(finetune: Finetune, topology: Topology) -> None:
    """Check that the packages are there, and the device that they need.

    Raises:
        EnvironmentFault: Something is missing; says what, and how to get it.
    """
    missing = [name for name in _NEEDS[finetune] if importlib.util.find_spec(name) is None]
    if missing:
        packages = " and ".join(missing)
        raise EnvironmentFault(
            f"workload.finetune: {finetune} needs {packages}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed",
            hint=f"pip install {' '.join(missing)} into the environment that runs autotune",
        )
    if finetune == "qlora" and topology.device != "cuda":
        raise EnvironmentFault(
            "workload.finetune: qlora needs a CUDA device, and none is used here",
            hint="lora trains the same adapters beside weights that are not packed",
        )
