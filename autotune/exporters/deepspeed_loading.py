"""Run as a program: loads a configuration in DeepSpeed's own class.

Reads ``{"config": …, "processes": N}`` on stdin; its last line on stdout is
``{"version", "refused", "differences"}``. Its whole purpose is to import DeepSpeed.
"""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

_TOP_LEVEL = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "steps_per_print",
)
"""Keys that ``DeepSpeedConfig`` keeps as attributes of the same name (``runtime/config.py``)."""


class _World:
    """Stands in for ``deepspeed.comm``: the class asks it for the number of processes only."""

    def __init__(self, processes: int) -> None:
        self._processes = processes

    def get_rank(self) -> int:
        return 0

    def get_world_size(self, _group: object = None) -> int:
        return self._processes


def load(config: dict[str, Any], processes: int) -> list[str]:
    """Return where DeepSpeed's parsed configuration differs from ``config``, in words.

    Raises:
        Exception: Whatever DeepSpeed raises for a configuration that it refuses.
    """
    from deepspeed.runtime import config as module

    module.dist = _World(processes)
    # A copy, so that what DeepSpeed changes in place does not hide a difference.
    parsed = module.DeepSpeedConfig(copy.deepcopy(config))
    seen = {key: getattr(parsed, key) for key in _TOP_LEVEL if key in config}
    differences = _compare("", {key: config[key] for key in seen}, seen)
    zero, fields = config.get("zero_optimization", {}), type(parsed.zero_config).model_fields
    names = {(field.alias or name): name for name, field in fields.items()} | {n: n for n in fields}
    understood = {key: getattr(parsed.zero_config, names[key]) for key in zero if key in names}
    unknown = [f"zero_optimization.{key} is unknown to it" for key in zero if key not in names]
    given = {key: zero[key] for key in understood if not isinstance(zero[key], dict)}
    for key in ("offload_optimizer", "offload_param"):
        if key in zero:
            section = understood[key].model_dump(mode="json", exclude_unset=True)
            differences += _compare(f"zero_optimization.{key}.", zero[key], section)
    for section, flag in (("bf16", parsed.bfloat16_config), ("fp16", parsed.float16_config)):
        if "enabled" in config.get(section, {}):
            differences += _compare(
                f"{section}.", {"enabled": config[section]["enabled"]}, {"enabled": flag.enabled}
            )
    return differences + unknown + _compare("zero_optimization.", given, understood)


def _compare(place: str, given: dict[str, Any], understood: dict[str, Any]) -> list[str]:
    return [
        f"{place}{key} is {understood[key]!r}, not {value!r}"
        for key, value in given.items()
        if understood[key] != value or isinstance(understood[key], bool) != isinstance(value, bool)
    ]


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    import deepspeed

    refused: str | None = None
    differences: list[str] = []
    try:
        differences = load(request["config"], request["processes"])
    except Exception as error:
        refused = f"{type(error).__name__}: " + " ".join(str(error).split())
    answer = {"version": deepspeed.__version__, "refused": refused, "differences": differences}
    print("\n" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
