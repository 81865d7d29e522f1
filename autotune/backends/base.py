"""What every training engine adapter does: validate, render, build, step, read back.

:meth:`Backend.validate`, :meth:`Backend.anchors` and :meth:`Backend.render` are pure and import
no engine: the coordinator and the exporters call them. :meth:`Backend.build` runs in a rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from autotune import registry
from autotune.contract.outcome import ReadBackLevel
from autotune.contract.plan import Plan, Topology, Workload
from autotune.knobs.knob import Knob

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankContext:
    """Where a rank runs. The process group is already initialised."""

    rank: int
    local_rank: int
    device: torch.device
    beat: Callable[[], None] = lambda: None
    """To be called for every parameter that is made: a model that takes minutes to build is told
    by it from a rank that hangs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a configuration cannot run."""

    about: str
    """What is at fault: a full knob name, or a key of the space file (``workload.precision``)."""
    reason: str
    """In words."""


class Engine(Protocol):
    """A built model with its optimizer, on one rank."""

    @property
    def model(self) -> torch.nn.Module:
        """The module to call in forward."""

    @property
    def module(self) -> torch.nn.Module:
        """The transformers model inside :attr:`model` (the same object where nothing wraps it)."""

    def before_forward(self, *, last: bool) -> None:
        """Prepare for a micro-step, before its forward.

        Args:
            last: Whether it is the iteration's last micro-step: some engines decide in forward
                whether the backward after it is synchronised.
        """

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        """Accumulate the gradients of one micro-step.

        Args:
            loss: Scalar ``L · W / N`` (L summed token loss of the micro-step, W ranks, N target
                tokens of the global batch), so that averaging over ranks gives the mean loss.
            last: Whether this is the iteration's last micro-step.
        """

    def step(self) -> torch.Tensor | float:
        """Clip, update, zero the gradients; return the global gradient norm before clipping.

        Does not synchronise the host with the device where the engine allows it. Gradients that
        are not finite give a norm that is not finite, also where the engine skips the update.
        """

    def read_back(self) -> Mapping[str, tuple[Any, ReadBackLevel]]:
        """Full knob name to the value that the running engine has, and how it was read."""

    def formats(self) -> Mapping[str, str]:
        """Return the number formats that the engine holds after its first update.

        By the fields of the plan's precision, and ``optimizer`` for the optimizer's state; what
        the engine cannot tell is left out.
        """

    def notes(self) -> Mapping[str, Any]:
        """What the record should say besides (versions of a rule, keys that were not read back)."""

    def close(self) -> None:
        """Give back what outlives the process otherwise."""


class Backend(Protocol):
    """An engine adapter. Stateless: one instance serves every trial."""

    name: str
    """Name in the space file and owner of the knobs."""
    knobs: tuple[Knob, ...]
    """The backend's knob table, from ``autotune.knobs``."""
    preload: tuple[str, ...]
    """Modules for the fork server to import once, so that no trial pays for them. Importing them
    touches no device and starts no thread; a name that the installed version lacks is skipped."""
    replicates: bool
    """Whether every process holds all weights, gradients and optimizer state. Such a backend is
    left out of a search where they cannot fit on one device."""
    placeholder: str | None
    """What stands in a command for the path of the rendered configuration, such as
    ``deepspeed_json``; ``None``: the engine reads no file."""

    def validate(
        self, config: Mapping[str, Any], workload: Workload, topology: Topology
    ) -> Refusal | None:
        """Return why this configuration cannot run here, or ``None``."""

    def anchors(self, workload: Workload) -> dict[str, dict[str, Any]]:
        """Known configurations to try first: name to full knob name to value."""

    def auto(self, workload: Workload) -> dict[str, Any]:
        """Return what ``auto`` stands for: full name to value, of each knob with a rule for it.

        Raises:
            InputError: The model's configuration does not say what the rules need.
        """

    def render(self, plan: Plan) -> dict[str, Any]:
        """Return the engine's own configuration, plain JSON data.

        The worker applies exactly this, the exporters write exactly this.
        """

    def build(self, plan: Plan, rank: RankContext) -> Engine:
        """Build the model on ``plan.training.model`` with by-name weights, shard by shard.

        Raises:
            IncompatibleConfigError: the engine refuses the configuration.
        """


class CompilingBackend(Backend, Protocol):
    """One whose engine compiles extensions at first use: those that needs of its knobs name."""

    def load_extension(self, name: str) -> str:
        """Load an extension, compiled where it is not there yet; runs in a process of its own.

        What this leaves in ``TORCH_EXTENSIONS_DIR`` must be what a rank of a trial finds and loads
        without compiling.

        Returns:
            Path of the library.

        Raises:
            EnvironmentFault: The machine is at fault.
            Exception: It cannot be built or loaded; the text holds all that the compiler said.
        """


def backend_of(name: str) -> Backend:
    """Return the backend registered as ``name``.

    Raises:
        InputError: There is none.
        EnvironmentFault: Its adapter cannot be imported.
    """
    return cast("Backend", registry.load("backends", name)())


class IncompatibleConfigError(Exception):
    """The engine or the library refuses a configuration (failure kind ``incompatible``)."""
