"""What one choice of a ``kernel.*`` knob needs and does, as data. Without torch."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import shutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

    from autotune.models.family import ModelFamily


class KernelNotBoundError(Exception):
    """A kernel was asked for and the live model does not run it (``not_in_effect``)."""


class KernelRefusedError(Exception):
    """A library refuses a kernel for this model (``incompatible``)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """What decides whether a kernel can run, as the coordinator knows it."""

    device: str
    """``cpu`` or ``cuda``."""
    capability: tuple[int, int] | None = None
    """Compute capability of the weakest device; ``None`` without one, or where it is not known."""
    compute: str = "fp32"
    """Format of the activations: ``fp32`` or ``bf16``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """One implementation of a layer type."""

    name: str
    packages: tuple[str, ...] = ()
    """Modules that must be importable."""
    install: str = ""
    """How to get ``packages``, in words."""
    needs_cuda: bool = False
    """Whether it runs on NVIDIA GPUs only."""
    capability: tuple[int, int] | None = None
    """Smallest compute capability."""
    computes: tuple[str, ...] = ("fp32", "bf16")
    """Formats that it computes in."""
    unfit: Callable[[Machine], str | None] = lambda machine: None  # noqa: ARG005 - fits all
    """Any other reason why it cannot run on a machine."""
    boundaries: bool = True
    """Whether packed samples do not see each other through it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """The built module that kernels are bound to: on the meta device, before it is sharded."""

    family: ModelFamily
    module: torch.nn.Module
    static_shapes: bool
    """Whether every micro-step has the same shape."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerKernels:
    """The knob of one layer type."""

    knob: str
    """Bare name."""
    kinds: tuple[str, ...]
    """Layer types, as ``ModelFamily.implementations`` names them, that the knob decides."""
    choices: tuple[Choice, ...]
    """The first one is the knob's default."""
    bind: Callable[[Target, str], None]
    """Bind a choice, by name."""
    bound: Callable[[Target], str]
    """The name of the choice that the live modules run; otherwise what they run, in words."""
    refused: Callable[[str, str], str | None] = lambda family, choice: None  # noqa: ARG005
    """Why the library's model of a family has no such choice, on any machine: of the family's name
    and the choice's. Told without importing the library."""

    @property
    def reference(self) -> str:
        """The choice that the others must agree with."""
        return self.choices[0].name

    def choice(self, name: str) -> Choice:
        """Return the choice called ``name``.

        Raises:
            KeyError: There is none.
        """
        for one in self.choices:
            if one.name == name:
                return one
        raise KeyError(f"kernel.{self.knob} has no choice {name!r}")


def unavailable(choice: Choice, machine: Machine) -> str | None:
    """Return why a choice cannot run on a machine, and how to change that; ``None`` if it may."""
    if choice.needs_cuda and machine.device != "cuda":
        return "it needs an NVIDIA GPU, and none is used"
    missing = [name for name in choice.packages if not is_importable(name)]
    if missing:
        return f"{', '.join(missing)} is not installed; to have it: {choice.install}"
    wanted, found = choice.capability, machine.capability
    if wanted is not None and found is not None and found < wanted:
        return f"it needs compute capability {_dotted(wanted)}, and the GPU has {_dotted(found)}"
    if machine.compute not in choice.computes:
        return (
            f"it computes in {' or '.join(choice.computes)}, and the workload in {machine.compute}"
        )
    return choice.unfit(machine)


def no_compiler(machine: Machine) -> str | None:
    """Return why Inductor cannot compile here: it writes C++ for a CPU and Triton for a GPU."""
    if machine.device == "cpu":
        if any(shutil.which(name) for name in ("g++", "clang++", "c++")):
            return None
        return "there is no C++ compiler on PATH; to have it: install g++"
    if is_importable("triton"):
        return None
    return "triton is not installed; to have it: a torch build for CUDA brings it"


def is_importable(name: str) -> bool:
    """Whether a module can be found; nothing but its parents is imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


DISTRIBUTIONS: Final[Mapping[str, str]] = {
    "flash_attn": "flash-attn",
    "liger_kernel": "liger-kernel",
    "fla": "flash-linear-attention",
    "causal_conv1d": "causal-conv1d",
    "triton": "triton",
    "tilelang": "tilelang",
    "kernels": "kernels",
    "torch": "torch",
    "transformers": "transformers",
}
"""Import name to the name under which a package is installed."""


def version(name: str) -> str | None:
    """Return the installed version of a package by its import name, or ``None``."""
    try:
        return importlib.metadata.version(DISTRIBUTIONS.get(name, name))
    except importlib.metadata.PackageNotFoundError:
        return None


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def of_paths(paths: str, prefixes: Mapping[str, str]) -> str:
    """Return the choice whose prefix every path of ``paths`` has; else ``paths`` itself.

    Args:
        paths: As ``ModelFamily.implementations`` joins them.
        prefixes: Choice to the beginning of its functions' paths.
    """
    found = {
        next((name for name, prefix in prefixes.items() if path.startswith(prefix)), path)
        for path in paths.split(" + ")
    }
    return found.pop() if len(found) == 1 else paths


def by_path(kind: str, prefixes: Mapping[str, str]) -> Callable[[Target], str]:
    """Return a :attr:`LayerKernels.bound` that tells a layer type's choices by their paths.

    Args:
        kind: As ``ModelFamily.implementations`` names it.
        prefixes: As :func:`of_paths` takes them.
    """

    def bound(target: Target) -> str:
        return of_paths(target.family.implementations(target.module).get(kind, ""), prefixes)

    return bound


def first_line(error: BaseException) -> str:
    """Return an exception's text on one line."""
    text: Any = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
