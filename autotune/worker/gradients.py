"""What ran backward, layer type by layer type, and did a gradient come through all of it?

The functions that layers are bound to say what runs forward. What runs backward is in the graph
that autograd recorded; and a kernel without a backward, or with one that forgets an input, raises
no error: it trains something else, often faster. So one check iteration, which no window times, is
watched by hooks that are gone when it ends.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from autotune.models import lora
from autotune.models.kernels.compiled import is_compiled
from autotune.worker.failures import NumericsError

if TYPE_CHECKING:
    from autotune.models.family import ModelFamily

SHORTEST: Final = 3
"""Tokens of a row from which on queries and keys have gradients: the last token predicts nothing,
and the first one's attention has only itself to choose."""
_MOVES: Final = frozenset(
    f"{name}Backward0"
    for name in (
        "Alias", "AsStrided", "Cat", "Clone", "Copy", "Expand", "Permute", "Reshape",
        "ReshapeAlias", "Select", "Slice", "Split", "SplitWithSizes", "Squeeze", "Stack", "T",
        "ToCopy", "Transpose", "Unbind", "UnsafeView", "Unsqueeze", "View",
    )
)  # fmt: skip
"""Steps of a graph that compute nothing."""
_HOOKS: Final = ("PreBackward", "PostBackward")
"""In the names of the steps by which DeepSpeed and FSDP2 follow the backward."""


@dataclasses.dataclass(kw_only=True)
class _Point:
    """A place in the forward, and whether a gradient has come back to it."""

    what: str
    passed: bool = False
    """Whether a tensor that needs a gradient has passed here."""
    arrived: list[torch.Tensor] = dataclasses.field(default_factory=list)
    """Of each gradient, whether it is not all zero; on the device, so that nothing waits."""

    def watch(self, tensor: torch.Tensor | None) -> None:
        if tensor is None:
            return
        self.passed = True
        # A loss that is zero, of a row without labels, has no gradient to hand on.
        counts = True if tensor.dim() else tensor.detach() != 0

        def note(gradient: torch.Tensor) -> None:
            self.arrived.append(gradient.detach().any() & counts)

        tensor.register_hook(note)  # type: ignore[no-untyped-call]  # untyped in torch

    @property
    def reached(self) -> bool:
        return any(map(bool, self.arrived))


@dataclasses.dataclass(kw_only=True)
class _Part:
    """A module of a layer type."""

    kind: str
    place: str
    """`` of layer 3``, or nothing where there is only one."""
    output: _Point
    inner: list[_Point]
    """Its input and, of a token mixer, what its own parts return."""
    steps: set[str] = dataclasses.field(default_factory=set)
    longest: int = 0
    """Tokens of the longest row it was given."""
    led_back: bool = True
    """Whether its output's graph leads to its input."""


class GradientWatch:
    """Watches one iteration of a built engine."""

    def __init__(self, family: ModelFamily, module: torch.nn.Module) -> None:
        self._family = family
        self._module = module
        self._parts: list[_Part] = []
        self._adapters: list[_Point] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Hold the hooks while an iteration runs."""
        mixers = {id(module) for _, module in self._family.mixers(self._module)}
        handles: list[Any] = []
        for place, kind, module in self._watched():
            children = dict(module.named_children()) if id(module) in mixers else {}
            points = [_Point(what=name) for name in ("its input", *children)]
            part = _Part(kind=kind, place=place, output=_Point(what=kind), inner=points)
            self._parts.append(part)
            handles += _hook(part, module)
            for point, child in zip(points[1:], children.values(), strict=True):
                handles.append(child.register_forward_hook(_looking_at(point)))
        # Hooks inside a compiled layer would be compiled anew.
        if not any(map(is_compiled, self._family.layers(self._module))):
            for name, matrix in lora.adapters(self._module).items():
                self._adapters.append(_Point(what=name))
                handles.append(matrix.register_forward_hook(_looking_at(self._adapters[-1])))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _watched(self) -> Iterator[tuple[str, str, torch.nn.Module]]:
        """Place, layer type and module of each part; the output head makes the loss."""
        for number, layer in enumerate(self._family.layers(self._module)):
            for kind, module in self._family.parts(layer):
                yield f" of layer {number}", kind, module
        yield "", "loss", self._family.embeddings(self._module)[1]

    def backward(self) -> dict[str, str]:
        """Layer type to the autograd functions of its backward; mere views are left out."""
        steps: dict[str, set[str]] = collections.defaultdict(set)
        for part in self._parts:
            steps[part.kind] |= part.steps
        return {kind: " + ".join(sorted(names)) for kind, names in steps.items() if names}

    def require_gradients(self) -> None:
        """Check that a gradient came through every part, and to every adapter.

        Raises:
            NumericsError: A part has no backward, or one that leaves an input out, or an adapter
                is not trained.
        """
        bound = self._family.implementations(self._module)
        for part in self._parts:
            where = f"{part.kind}{part.place} ({bound.get(part.kind, 'unknown')})"
            if not part.led_back:
                raise NumericsError(
                    f"{where} runs forward only: no gradient leads from its output to its input"
                )
            if not part.output.reached or part.longest < SHORTEST:
                continue
            for point in part.inner:
                if point.passed and not point.reached:
                    raise NumericsError(
                        f"the backward of {where} is incomplete: no gradient reaches {point.what}"
                    )
        self._require_adapters()

    def _require_adapters(self) -> None:
        """Check that each adapter was computed and trained: a fused kernel may pass it by.

        A rank whose rows were all fillers has a loss of zero, and trains nothing.
        """
        if max((part.longest for part in self._parts), default=0) < SHORTEST:
            return
        if not any(part.output.reached for part in self._parts if part.kind == "loss"):
            return
        for point in self._adapters:
            if not point.reached:
                why = "no gradient reaches it" if point.passed else "it was not computed"
                raise NumericsError(f"the adapter of {point.what} is not trained: {why}")


def _hook(part: _Part, module: torch.nn.Module) -> list[Any]:
    given: list[tuple[torch.Tensor | None, Any]] = []

    def before(_module: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        tensor = _needing_gradient([*args, *kwargs.values()])
        # Now, for what changes a tensor in place gives it another one.
        given.append((tensor, None if tensor is None else tensor.grad_fn))

    def after(_module: Any, _args: Any, _kwargs: Any, output: Any) -> None:
        tensor, end = given.pop()
        result = _needing_gradient([output])
        if not torch.is_grad_enabled() or (tensor is None and result is None):
            return
        if result is None:
            part.led_back = False
            return
        part.longest = max(part.longest, (result if tensor is None else tensor).shape[-2])
        if tensor is None:
            # Adapters in the first layer: what is given to it comes from frozen weights.
            part.output.watch(result)
            return
        steps, led_back = _between(result, tensor, end)
        part.steps |= steps
        part.led_back &= led_back
        part.output.watch(result)
        part.inner[0].watch(tensor)

    return [
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(after, with_kwargs=True),
    ]


def _looking_at(point: _Point) -> Callable[..., None]:
    def hook(_module: Any, _args: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            point.watch(_needing_gradient([output]))

    return hook


def _needing_gradient(values: Iterable[Any]) -> torch.Tensor | None:
    """Return the first tensor among the values, or in a tuple of them, that needs a gradient."""
    for value in values:
        found = _needing_gradient(value) if isinstance(value, tuple) else value
        if isinstance(found, torch.Tensor) and found.requires_grad:
            return found
    return None


def _between(output: torch.Tensor, given: torch.Tensor, end: Any) -> tuple[set[str], bool]:
    """Return the names of the steps from output back to input, and whether they lead there.

    Args:
        output: What a module returned.
        given: What it was given.
        end: The step that made ``given``; ``None`` where it is a leaf of the graph.
    """
    names: set[str] = set()
    led_back = False
    seen, rest = {end}, [output.grad_fn]
    while rest:
        step: Any = rest.pop()
        is_end = step is end or getattr(step, "variable", None) is given
        led_back |= step is not None and is_end
        if step is None or is_end or step in seen:
            continue
        seen.add(step)
        rest += [before for before, _ in step.next_functions]
        name = step.name()
        is_hook = any(part in name for part in _HOOKS)
        if not (is_hook or name in _MOVES or hasattr(step, "variable")):
            names.add(name)
    return names, led_back
