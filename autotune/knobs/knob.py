"""One setting, described: what may tune it, what it does to the numbers, how it is read back."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

KnobType = Literal["int", "float", "bool", "text", "structure"]
"""``structure``: any list, mapping or scalar, passed on as it stands."""
Effect = Literal["neutral", "order", "rounding", "work"]
ReadBackLevel = Literal["live", "parsed", "effect", "schedule", "environment"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Need:
    """What a machine must have before a knob can be anything but its default."""

    kind: Literal["device", "compiler", "torch_method"]
    """``device``: a CUDA device; ``compiler``: nvcc, for an extension that the engine compiles at
    first use, and that a search builds before its first trial; ``torch_method``: a method of
    ``FSDPModule``."""
    name: str = ""
    """Of the method; of the extension, as its engine names it (DeepSpeed: the builder's class)."""
    values: tuple[Any, ...] = ()
    """The values that need it; empty: all but the default."""

    def concerns(self, value: Any, default: Any) -> bool:
        """Whether a knob with this default needs it to have ``value``."""
        return value in self.values if self.values else value != default


@dataclasses.dataclass(frozen=True, kw_only=True)
class Knob:
    """One setting that a backend, the workload, a kernel or the environment understands."""

    owner: str
    """Backend name, ``workload``, ``kernel`` or ``env``."""
    name: str
    """The name that its owner's documentation uses."""
    type: KnobType
    default: Any
    """The owner's own default, as a concrete value; ``None`` where it has none."""
    default_where: tuple[tuple[str, Any], ...] = ()
    """Where the owner's default depends on other knobs: conditions, as in ``dead_when``, each with
    the default that then holds. ``default`` is ``None``, and the first true one counts."""
    low: float | int | None = None
    """Smallest legal value (inclusive), for numbers."""
    high: float | int | None = None
    """Largest legal value (inclusive), for numbers."""
    choices: tuple[Any, ...] = ()
    """All legal values, for text; extra legal values of other types for numbers
    (``reshard_after_forward`` takes a bool or an int)."""
    unit: str = ""
    """``elements``, ``bytes``, ``tokens``, ``rows``, ``layers``; empty for switches."""
    numerics: Effect
    """``neutral``: the same numbers; ``order``: another order of summation; ``rounding``: needs
    ``search: {allow: [NAME]}`` to be tuned; ``work``: never tuned."""
    dead_when: str | None = None
    """Expression in the grammar of constraints over full or bare knob names and the facts
    ``processes``, ``device``, ``micro_steps`` (an iteration's, where rows say it), ``compute`` and
    ``accumulate`` (the workload's precision): while it holds, the value changes nothing."""
    read_back: ReadBackLevel
    read_from: str
    """Where the worker reads it in the running engine."""
    source: str
    """File or page that defines it."""
    meaning: str
    """One line: what it does, and what a larger value costs."""

    auto: str = ""
    """What ``auto`` means for trainers, as a formula; empty where it means nothing."""
    refused: tuple[tuple[Any, str], ...] = ()
    """Values that the owner defines and this version does not offer, each with the reason."""
    needs: tuple[Need, ...] = ()
    """What the machine must have; where it lacks it, the values are left out with the reason."""
    pattern: str = ""
    """Regular expression of the legal values of a text without ``choices``."""
    form: str = ""
    """The same in words, for messages."""
    later: bool = False
    """Whether the knob came after studies were made without it: at its default it leaves no trace
    in a configuration's key, so that those studies keep theirs."""

    @property
    def always_dead(self) -> bool:
        """Whether the value never changes anything under this owner."""
        return self.dead_when == "true"

    def extension(self, value: Any) -> str | None:
        """Return the extension that the owner compiles at first use where this knob has ``value``.

        By the owner's own name for it. No value of a knob has two.
        """
        needs = (need for need in self.needs if need.kind == "compiler")
        return next((need.name for need in needs if need.concerns(value, self.default)), None)

    @property
    def full_name(self) -> str:
        return f"{self.owner}.{self.name}"
