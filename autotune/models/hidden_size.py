"""The width of a model's residual stream, wherever its configuration says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from autotune.errors import InputError

OF_FAMILY: Final = "the default of the family"
"""In place of a field, where the configuration states no size and the library takes its own."""
_AUTO_KEYS: Final = (
    "reduce_bucket_size, stage3_prefetch_bucket_size and stage3_param_persistence_threshold"
)


def hidden_size(config: Mapping[str, Any]) -> tuple[int, str]:
    """Return the hidden size and the field that it was taken from.

    The top level wins, then the text section of a multimodal model, then the largest of a list
    of sizes: the rule by which trainers resolve ``auto`` (``transformers/integrations/
    deepspeed.py``, ``trainer_config_finalize``).

    Raises:
        InputError: The configuration has none of them.
    """
    text = config.get("text_config")
    for section, prefix in ((config, ""), (text, "text_config.")):
        if not isinstance(section, Mapping):
            continue
        if _is_size(section.get("hidden_size")):
            return int(section["hidden_size"]), f"{prefix}hidden_size"
    for section, prefix in ((config, ""), (text, "text_config.")):
        if not isinstance(section, Mapping):
            continue
        sizes = section.get("hidden_sizes")
        if isinstance(sizes, list | tuple) and sizes and all(map(_is_size, sizes)):
            return max(sizes), f"the largest of {prefix}hidden_sizes"
    raise missing()


def missing() -> InputError:
    """What is wrong where no size is stated; asks for numbers in place of ``auto``."""
    return InputError(
        "the model's configuration has no hidden_size, neither at its top nor in text_config, "
        "and no hidden_sizes",
        hint=f"give {_AUTO_KEYS} as numbers",
    )


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
