"""Liger's patches, one layer type at a time.

Read from liger_kernel 0.8 (``transformers/monkey_patch.py``): ``MODEL_TYPE_TO_APPLY_LIGER_FN``
has a function for each model type that it knows, with a switch for each layer type and the built
model as ``model``. It also replaces names in the library's own file, which ends with the process.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from autotune.models.kernels.choice import (
    Choice,
    KernelNotBoundError,
    KernelRefusedError,
    Target,
    first_line,
    version,
)

CHOICE: Final = Choice(
    name="liger",
    packages=("liger_kernel", "triton"),
    install="pip install liger-kernel",
    needs_cuda=True,
)
PATH: Final = "liger_kernel."
_PACKAGE: Final = "liger_kernel"


def patch(target: Target, switch: str, kinds: tuple[str, ...]) -> None:
    """Let Liger patch one layer type of the built model.

    Args:
        target: The model.
        switch: The argument of Liger's function: ``rms_norm``, ``rope`` or ``swiglu``.
        kinds: The layer types that it is to change.

    Raises:
        KernelRefusedError: Liger has no such patch for this model type, or it fails.
        KernelNotBoundError: It changes nothing.
    """
    config: Any = target.module.config
    function = _function(config.model_type)
    known = inspect.signature(function).parameters
    if switch not in known:
        raise KernelRefusedError(f"{_named(config.model_type)} has no {switch}")
    switches = {name: name == switch for name in known if name != "model"}
    before = _implementations(target, kinds)
    try:
        function(model=target.module, **switches)
    except (NotImplementedError, TypeError, AttributeError, ImportError, AssertionError) as error:
        raise KernelRefusedError(
            f"{_named(config.model_type)} cannot change {switch}: {first_line(error)}"
        ) from error
    if _implementations(target, kinds) == before:
        raise KernelNotBoundError(
            f"{_named(config.model_type)} changes nothing: no {' or '.join(kinds)} of the model "
            "is patched"
        )


def _function(model_type: str) -> Any:
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    function = MODEL_TYPE_TO_APPLY_LIGER_FN.get(model_type)
    if function is None:
        raise KernelRefusedError(f"{_named(model_type)} does not exist")
    return function


def _implementations(target: Target, kinds: tuple[str, ...]) -> dict[str, str]:
    found = target.family.implementations(target.module)
    return {kind: path for kind, path in found.items() if kind in kinds}


def _named(model_type: str) -> str:
    return f"the patch of {_PACKAGE} {version(_PACKAGE)} for {model_type}"


def bound(target: Target, kinds: tuple[str, ...]) -> str:
    """Return ``liger`` where it patched any of the layer types, and ``torch`` where none.

    A model may have modules of a type that Liger leaves alone, such as gated norms.
    """
    paths = " + ".join(_implementations(target, kinds).values())
    return "liger" if any(path.startswith(PATH) for path in paths.split(" + ")) else "torch"
