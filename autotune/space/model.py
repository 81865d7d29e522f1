"""What a space file says, checked and typed.

Parameters are addressed by the name that the file uses; configurations by full knob names.
An *assignment* maps the names of the parameters that are active (their ``when`` holds and
their backend is chosen) to values; :meth:`SearchSpace.resolve` makes a :class:`Config` of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from autotune.contract.plan import Finetune, Optimizer, Precision, Topology
from autotune.space.expression import Expression

AUTO: Final = "auto"
"""A value under ``fixed`` or ``baseline`` that follows from the model, by its knob's rule."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class IntRange:
    """Whole numbers ``low`` … ``high``, with ``also`` as extra values below or above."""

    low: int
    high: int
    log: bool = False
    step: int = 1
    also: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class FloatRange:
    """Real numbers ``low`` … ``high``; with ``step`` only ``low + k · step``, exact in decimal."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    also: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choices:
    """A list of values of one type; ``labels`` are their stable texts for the sampler."""

    values: tuple[Any, ...]
    labels: tuple[str, ...]


Domain = IntRange | FloatRange | Choices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Param:
    """One tuned parameter."""

    name: str
    """As written in the file: bare or full."""
    knob: str
    """Full knob name."""
    owner: str
    domain: Domain
    when: Expression | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSource:
    """``workload.data``: a named length distribution, or the user's own samples."""

    lengths: str | None
    """``ultrachat-like``; ``None`` when ``jsonl`` is given."""
    jsonl: str | None
    """Absolute path of the JSON Lines file."""
    tokenizer: str | None
    """Folder or hub id."""
    max_length: int
    seed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraSpec:
    """``workload.finetune`` where adapters are trained beside frozen weights."""

    rank: int = 16
    """Width of each adapter (peft's ``r``)."""
    alpha: float = 32.0
    """What the adapters' output is multiplied with, times ``rank`` (peft's ``lora_alpha``)."""
    targets: tuple[str, ...] | None = None
    """Last parts of the names of linear layers; ``None``: all of the decoder layers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkloadSpec:
    """The workload as the file states it; knobs of the workload are in ``fixed`` or ``params``."""

    model: str
    load_weights: bool
    finetune: Finetune
    lora: LoraSpec | None = None
    """``None`` exactly where ``finetune`` is ``full``."""
    global_batch: int
    data: DataSource
    optimizer: Optimizer
    precision: Precision


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandSpec:
    """The workload of a file that names a ``command``: a program of the user's own."""

    command: tuple[str, ...]
    """Program and arguments; the knobs in ``{param:…}`` by their full names."""
    global_batch: int
    """``samples_per_iteration``."""
    optimizer: Optimizer | None
    """Goes into the rendered configuration; ``None``: the program decides."""
    precision: Precision | None
    """As ``optimizer``; also decides how closely numbers are compared."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """The ``search:`` section."""

    trials: int = 40
    sampler: str = "auto"
    """``auto``, ``tpe``, ``gp`` or ``random``."""
    seed: int = 0
    max_trial_time_s: float = 300.0
    memory_margin_share: float = 0.05
    finalists: int = 1
    """Leading configurations that may be confirmed against the baseline at once, 1 to 3."""
    allow: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """One resolved configuration: every knob of its backend and of the workload has a value."""

    backend: str
    values: dict[str, Any]
    """Full knob name to concrete value. Knobs under a ``when`` that does not hold, and knobs of
    other backends, are absent or at their default, never at a drawn value."""
    dead: tuple[str, ...]
    """Full names in ``values`` that change nothing here; they are no part of ``key``."""
    key: str
    """Canonical key: equal for configurations that cannot differ."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dropped:
    """A choice that cannot hold here."""

    param: str
    value: Any
    """The choice; for a range the part that is gone, in words; ``None`` for the whole parameter."""
    reason: str
    topology: Topology | None = None
    """Where it cannot hold; ``None``: nowhere."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What the workload's model and the machine allow."""

    packing: str | None = None
    """Why samples cannot be packed with any of the kernels; ``None`` where they can."""
    values: Mapping[str, Mapping[Any, str]] = dataclasses.field(default_factory=dict)
    """Full knob name to values that cannot hold, each with the reason."""
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What conditions of knobs may name of the model, such as ``attention_layers``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constraint:
    """A line of ``constraints:``."""

    text: str
    expression: Expression
