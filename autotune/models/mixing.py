"""Watching what passes through the parts of a model by which tokens of a row reach each other."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Seen = Callable[[str, int, "torch.Tensor"], None]
"""Is told layer type, number of the decoder layer, and output: rows × length × channels."""


@contextlib.contextmanager
def watching_modules(mixers: Sequence[tuple[str, torch.nn.Module]], seen: Seen) -> Iterator[None]:
    """Tell ``seen`` what each layer's token mixer returns."""

    def watch(kind: str, layer: int) -> Any:
        def hook(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
            seen(kind, layer, output[0] if isinstance(output, tuple) else output)

        return hook

    handles = [
        module.register_forward_hook(watch(kind, layer))
        for layer, (kind, module) in enumerate(mixers)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def watching_calls(
    file: Any, name: str, kind: str, layers: Iterable[int], seen: Seen
) -> Iterator[None]:
    """Tell ``seen`` what a function of ``file``, called once by each of ``layers``, returns.

    The function's output is rows × channels × length.
    """
    function = getattr(file, name)
    number = iter(layers)

    @functools.wraps(function)
    def watched(*args: Any, **named: Any) -> Any:
        output = function(*args, **named)
        seen(kind, next(number), output.transpose(1, 2))
        return output

    setattr(file, name, watched)
    try:
        yield
    finally:
        setattr(file, name, function)
