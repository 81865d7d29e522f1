"""The plan: all that one trial needs, frozen and hashed.

The coordinator writes it once, every rank reads the same file and compares the hash before it
starts. A plan holds no default that a reader would have to know: every live knob has its value.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, Literal

from autotune.contract import codec, jsonfile

DType = Literal["fp32", "bf16"]
Batching = Literal["padded", "sorted", "packed"]
Purpose = Literal["trial", "remeasurement", "kernel", "extension"]
Finetune = Literal["full", "lora", "qlora"]
"""``full``: all weights are trained. ``lora``: adapters beside frozen weights. ``qlora``: the same
beside weights that are stored in four bits."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Precision:
    """Number formats of the training step. Part of the workload: never tuned."""

    compute: DType
    """Format of weights and activations in forward and backward."""
    master: DType
    """Format of the weights that the optimizer updates."""
    accumulate: DType
    """Format in which gradients of several micro-steps are summed."""
    reduce: DType
    """Format in which gradients cross ranks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """AdamW with explicit values; an engine's own defaults never apply."""

    lr: float
    weight_decay: float
    gradient_clipping: float
    """Largest global L2 norm of the gradient; 0 switches clipping off."""
    betas: tuple[float, ...] = (0.9, 0.999)
    eps: float = 1e-8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """The model to build."""

    name: str
    """As the user wrote it: preset, hub id or folder."""
    family: str
    """Name in the registry of model families, such as ``qwen3``."""
    config: dict[str, Any]
    """The transformers configuration, as in ``config.json``."""
    weights: str | None = None
    """Folder with the real weights (safetensors); ``None`` draws them by parameter name."""
    num_parameters: int
    """All parameters but those of adapters, tied ones counted once."""
    seed: int = 0
    hidden_size_from: str = "hidden_size"
    """The field of the model's own configuration that its hidden size was taken from."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples:
    """The stream of B distinct global batches that every trial of the study cycles through.

    Sample ``i`` belongs to batch ``i // global_batch``.
    """

    lengths: tuple[int, ...]
    """True length in tokens of each sample, B × global_batch of them, in stream order."""
    max_length: int
    """No sample is longer (tokens)."""
    seed: int
    """Seed from which synthetic tokens are drawn."""
    source: str
    """``ultrachat-like`` for synthetic tokens, else the path of the JSON Lines file."""
    token_file: str | None = None
    """JSON file with the token ids and labels of each sample; ``None`` for synthetic ones."""
    token_file_sha256: str | None = None
    """Hash of ``token_file``'s bytes, compared by every rank."""
    dataset_samples: int | None = None
    """Samples in the user's whole file, for the projected time; ``None`` for synthetic ones."""
    truncated: int = 0
    """How many samples of the stream were longer than ``max_length`` and lost their end."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MicroStep:
    """One forward and backward on one rank."""

    samples: tuple[int, ...]
    """Indices into :class:`Samples`. Empty: a filler whose labels are all ignored."""
    rows: int
    """First dimension of the input ids (1 for a packed micro-step and for a filler)."""
    length: int
    """Second dimension of the input ids (tokens)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankSchedule:
    """The micro-steps of one rank in one iteration."""

    micro_steps: tuple[MicroStep, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchSchedule:
    """One global batch cut over the ranks; every rank has the same number of micro-steps."""

    ranks: tuple[RankSchedule, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """How the stream is cut into micro-steps; a pure function of samples, cut and ranks."""

    batching: Batching
    batches: tuple[BatchSchedule, ...]
    worst_case: MicroStep
    """The largest micro-step that the cut allows on the user's whole data, for the memory probe.
    ``samples`` is empty: the worker fills the shape with drawn tokens, labels included."""
    padding_share: float
    """Padded tokens ÷ all tokens in the inputs of the whole stream."""
    distinct_shapes: int

    @property
    def micro_steps(self) -> int:
        """The largest number of micro-steps per rank in any iteration."""
        return max(len(batch.ranks[0].micro_steps) for batch in self.batches)

    @property
    def meets_worst_case(self) -> bool:
        """Whether each rank ends some iteration with a micro-step of the worst case's shape."""
        worst = (self.worst_case.rows, self.worst_case.length)
        return all(
            any((step.rows, step.length) == worst for step in mine) for mine in self._lasts()
        )

    @property
    def worst_case_growth(self) -> float:
        """How many times the worst case is what each rank ended some iteration with.

        Counted in rows × length², as what grows fastest with length, the scores of attention, does:
        nothing that a micro-step holds grows more.
        """
        mine = (max(_scores(step) for step in steps) for steps in self._lasts())
        return max(1.0, _scores(self.worst_case) / min(mine))

    def _lasts(self) -> Iterator[tuple[MicroStep, ...]]:
        """For each rank the micro-steps that ended its iterations.

        The last one is what counts: the gradients of those before it are held meanwhile. Only
        iterations with the most micro-steps do, for then as many are held as can be.
        """
        most = self.micro_steps
        full = [batch for batch in self.batches if len(batch.ranks[0].micro_steps) == most]
        lasts = [[rank.micro_steps[-1] for rank in batch.ranks] for batch in full]
        return zip(*lasts, strict=True)


def _scores(step: MicroStep) -> int:
    return step.rows * step.length**2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters: ``output += (alpha / rank) · B · A · input`` at some linear layers."""

    rank: int
    """Rows of A and columns of B."""
    alpha: float
    targets: tuple[str, ...]
    """Last parts of the names of the linear layers that have one, such as ``q_proj``."""
    num_parameters: int
    """Elements of all A and B: what is trained."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """The work of one iteration: the same for every trial of a study."""

    model: Model
    finetune: Finetune = "full"
    lora: Lora | None = None
    """The adapters; ``None`` exactly where ``finetune`` is ``full``."""
    global_batch: int
    """Samples per iteration."""
    distinct_batches: int = 4
    """B, the length of the cycle of global batches."""
    samples: Samples
    optimizer: Optimizer
    precision: Precision

    def __post_init__(self) -> None:
        if (self.lora is None) != (self.finetune == "full"):
            raise ValueError("a workload has adapters exactly where it is not fine-tuned in full")

    @property
    def num_trainable(self) -> int:
        """Parameters that the optimizer updates."""
        return self.model.num_parameters if self.lora is None else self.lora.num_parameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandWorkload:
    """The work of one iteration, done by a program of the user's own."""

    command: tuple[str, ...]
    """Program and arguments, with the placeholders of ``contract.command``."""
    global_batch: int
    """Samples per iteration (``samples_per_iteration`` in the space file)."""
    distinct_batches: int = 4
    """Iterations that are taken together where autotune's own step takes a cycle of batches."""
    optimizer: Optimizer | None = None
    """Written into the rendered configuration; ``None``: the program decides."""
    precision: Precision | None = None
    """As ``optimizer``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
    """Where the ranks of a trial run."""

    processes: int
    """World size W."""
    device: Literal["cpu", "cuda"]
    devices_per_node: int
    nodes: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Racing:
    """When a trial may stop early.

    It must be worse than the best by more than its interval, three times the noise, and 10 %.
    """

    best_s_per_it: float
    noise_share: float
    """Spread between launches of the baseline, as a share of its median."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measuring:
    """Rules of warm-up and timing (docs/explanation/measuring.md)."""

    check_iterations: int = 3
    """First iterations, part of the warm-up, whose loss and gradient norm are recorded."""
    warmup_tolerance: float
    """Warm-up ends when the medians of two consecutive cycles agree within this share."""
    warmup_max_cycles: int
    interval_share: float
    """The window ends when the 95 % interval of s/it is within ± this share, …"""
    window_s: float
    """… or after this many seconds, …"""
    window_iterations: int
    """… or after this many iterations; always at a cycle boundary, and never before one cycle."""
    racing: Racing | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckPoint:
    """Numbers of one check iteration; ``None`` where a command did not report one."""

    loss: float | None
    """Mean token loss over the global batch, before the update."""
    grad_norm: float | None
    """Global L2 norm of the gradient, before clipping."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reference:
    """What the first launch of the baseline computed, and with which kernels; or nothing yet."""

    checks: tuple[CheckPoint, ...] = ()
    implementations: dict[str, str] = dataclasses.field(default_factory=dict)
    losses: tuple[float, ...] = ()
    grad_norms: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numerics:
    """The numerics gate: relative tolerances, and the baseline's numbers once they are known."""

    reference: tuple[CheckPoint, ...] = ()
    """The baseline's check iterations; empty for the baseline itself."""
    implementations: dict[str, str] = dataclasses.field(default_factory=dict)
    """What the baseline's layer types were bound to: equal work is done by the same kernels. Empty
    for the baseline itself."""
    first_loss_tolerance: float
    first_norm_tolerance: float
    loss_tolerance: float
    """For check iterations after the first."""
    norm_tolerance: float
    losses: tuple[float, ...] = ()
    """The baseline's, of every iteration in order, as far as it ran."""
    grad_norms: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Wall-clock limits, enforced outside the measured processes."""

    total_s: float
    """From submission to the last process reaped."""
    phase_s: dict[str, float]
    """How long a rank's heartbeat may stand still, per phase (names as in
    ``contract.failures.PHASES``), where a limit applies."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """One trial. ``digest`` is the hash of its canonical JSON."""

    schema_version: int = 1
    study: str
    number: int
    """Trial number, or number of the re-measurement."""
    attempt: int = 0
    purpose: Purpose = "trial"
    key: str
    """Canonical key of the configuration."""
    backend: str
    config: dict[str, Any]
    """Every knob of the backend, the workload, the kernels and the environment, full name to value.
    No ``auto``."""
    verify: tuple[str, ...]
    """Full names whose value must be read back after the build: all that the user tunes or set.
    A command's own engine cannot be asked: there they are reported as unverified."""
    dead: tuple[str, ...] = ()
    """Full names whose value changes nothing beside the others: what an engine holds for them is no
    difference."""
    unverified: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Engine keys passed through that the knob tables do not know."""
    workload: CommandWorkload | Workload
    schedule: Schedule | None
    """``None`` for a command, which cuts its batches itself."""
    topology: Topology
    measuring: Measuring
    numerics: Numerics
    deadlines: Deadlines
    memory_margin_share: float = 0.05
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    """Variables that this trial sets in its ranks."""
    unset: tuple[str, ...] = ()
    """Variables that its ranks must not have, though the site may have set them."""

    def __post_init__(self) -> None:
        if isinstance(self.workload, CommandWorkload) != (self.schedule is None):
            raise ValueError("a plan has a schedule exactly when its workload is no command")

    @property
    def training(self) -> Workload:
        """The workload of a plan that autotune's own ranks run."""
        assert isinstance(self.workload, Workload), "a command has no model and no samples"
        return self.workload

    @property
    def cut(self) -> Schedule:
        """The schedule of a plan that autotune's own ranks run."""
        assert self.schedule is not None, "a command cuts its batches itself"
        return self.schedule

    @property
    def kernels(self) -> dict[str, str]:
        """Bare name of each ``kernel.*`` knob to its choice."""
        prefix = "kernel."
        return {
            name.removeprefix(prefix): value
            for name, value in self.config.items()
            if name.startswith(prefix)
        }

    @property
    def num_launched(self) -> int:
        """Processes that autotune starts, each of which leaves a record.

        One a rank; for a command the one that runs it.
        """
        return 1 if isinstance(self.workload, CommandWorkload) else self.topology.processes

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        return jsonfile.digest(codec.to_json(self))
