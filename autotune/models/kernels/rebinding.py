"""Functions that a layer calls by a name of its own file: what stands there, and another one.

transformers decides at import whether a package's kernel takes the place of the torch function,
catches whatever goes wrong, and the wrapper keeps the torch function's name either way
(``transformers/integrations/hub_kernels.py``, ``use_kernel_func_from_hub_with_fallback``; 5.17 and
5.24). The truth is the ``implementation`` that the wrapper closed over. What is put in its place
here closes over one too, so one reading serves both.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from autotune.models.kernels.choice import Target

Function = Callable[..., Any]


def files_of(target: Target, kind: str) -> list[Any]:
    """Return the library's files that define the token mixers of a layer type."""
    from autotune.models.causal_lm import modeling_of

    mixers = target.family.mixers(target.module)
    return list(dict.fromkeys(modeling_of(mixer) for found, mixer in mixers if found == kind))


def implementation(function: Function) -> Function:
    """Return what a call of ``function`` ends in."""
    inner: Function | None = function
    while inner is not None:
        closed_over: Mapping[str, Any] = inspect.getclosurevars(inner).nonlocals
        if "implementation" in closed_over:
            found: Function = closed_over["implementation"]
            return found
        inner = getattr(inner, "__wrapped__", None)
    return function


def torch_function(function: Function) -> Function:
    """Return the library's own torch function, which every wrapper names."""
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        function = inner
    return function


def bind(file: Any, name: str, kernel: Function, call: Function) -> None:
    """Let layers of ``file`` that call ``name`` call ``call`` with a kernel before the arguments.

    Args:
        file: The library's module that defines the layers.
        name: A function of it.
        kernel: What :func:`implementation` is to find.
        call: Takes the kernel and the layers' arguments.
    """
    import torch

    # A package's kernels are no graph that a compiler could look into.
    run: Function = torch.compiler.disable(call)  # type: ignore[no-untyped-call]  # untyped in torch
    implementation = kernel

    @functools.wraps(torch_function(getattr(file, name)))
    def bound(*args: Any, **named: Any) -> Any:
        return run(implementation, *args, **named)

    setattr(file, name, bound)


def bind_torch(file: Any, name: str) -> None:
    """Let layers of ``file`` call the library's own torch function, without a wrapper."""
    setattr(file, name, torch_function(getattr(file, name)))
