"""Names of the replaceable parts, loaded on first use.

Each kind maps a name to ``"module:attribute"``. The tables below hold what ships with the
package; another package adds to a kind with an entry point in the group ``autotune.<kind>``,
without editing anything here. Looking a name up imports only that one module.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final, Literal

from autotune.errors import EnvironmentFault, InputError

Kind = Literal["backends", "launchers", "models", "exporters"]

BUILTIN: Final[dict[Kind, dict[str, str]]] = {
    "backends": {
        "zero3": "autotune.backends.deepspeed:Zero3Backend",
        "deepspeed": "autotune.backends.deepspeed:DeepSpeedBackend",
        "fsdp2": "autotune.backends.fsdp2:Fsdp2Backend",
        "ddp": "autotune.backends.ddp:DdpBackend",
    },
    "launchers": {
        "local": "autotune.launchers.this_machine:ThisMachine",
        "replay": "autotune.launchers.replay:Replay",
    },
    "models": {
        "qwen3": "autotune.models.qwen3:Qwen3Family",
        "qwen3_moe": "autotune.models.qwen3_moe:Qwen3MoeFamily",
        "qwen3_5": "autotune.models.qwen3_5:Qwen35Family",
    },
    "exporters": {
        "deepspeed": "autotune.exporters.deepspeed:export",
        "accelerate": "autotune.exporters.accelerate:export",
    },
}


@cache
def _table(kind: Kind) -> dict[str, str]:
    table = dict(BUILTIN[kind])
    for entry in entry_points(group=f"autotune.{kind}"):
        table.setdefault(entry.name, entry.value)
    return table


def names(kind: Kind) -> tuple[str, ...]:
    """All names of a kind, the shipped ones first."""
    return tuple(_table(kind))


def load(kind: Kind, name: str) -> Any:
    """Return the object registered under ``name``.

    Raises:
        InputError: ``name`` is not registered.
        EnvironmentFault: its module, or a package that the module needs, cannot be imported.
    """
    table = _table(kind)
    if name not in table:
        known = ", ".join(sorted(table))
        raise InputError(f"unknown {kind[:-1]} {name!r}", hint=f"known: {known}")
    module_name, _, attribute = table[name].partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise EnvironmentFault(
            f"{kind[:-1]} {name!r} cannot be loaded: {error}",
            hint="install the missing package into the environment that runs autotune",
        ) from error
    return getattr(module, attribute)
