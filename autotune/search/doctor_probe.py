"""Run as a program: imports what trials import, and says what came of it.

Reads ``{"backends", "packages", "families"}`` on stdin. Each line on stdout that starts with
:data:`MARK` is one finding, ``{"subject": …, …}``, written as soon as it is known: whatever ends
this process early costs only what comes after. Its whole purpose is to import the heavy
libraries; ``autotune doctor`` itself loads none.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from typing import Any, Final

MARK: Final = "@autotune-doctor "


def tell(subject: str, find: Callable[[], dict[str, Any]]) -> None:
    """Print what ``find`` returns, or that it failed and how."""
    try:
        finding = find()
    except (Exception, SystemExit) as error:
        # Packages raise whatever they like while they are imported.
        finding = {"error": f"{type(error).__name__}: " + " ".join(str(error).split())[:500]}
    print("\n" + MARK + json.dumps({"subject": subject} | finding), flush=True)


def look_at_torch() -> dict[str, Any]:
    """Version, collectives and devices as torch sees them."""
    import torch
    import torch.distributed

    devices = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        major, minor = torch.cuda.get_device_capability(index)
        name = torch.cuda.get_device_name(index)
        devices.append({"name": name, "capability": [major, minor]})
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "devices": devices,
        "architectures": torch.cuda.get_arch_list() if devices else [],
        "gloo": torch.distributed.is_gloo_available(),
        "nccl": torch.distributed.is_nccl_available(),
        "device_step": _device_step() if devices else None,
    }


def _device_step() -> bool:
    """Whether a product and its gradient can be computed on the first device."""
    import torch

    weight = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    torch.autograd.backward((weight @ weight).sum())
    return weight.grad is not None and bool(torch.isfinite(weight.grad).all())


def look_at_backend(name: str) -> dict[str, Any]:
    """Import what the backend's fork server imports; a module that a version lacks is skipped."""
    from autotune.backends.base import backend_of

    missing = []
    for module in backend_of(name).preload:
        if "." in module and not module.startswith("autotune.") and not _exists(module):
            missing.append(module)
            continue
        importlib.import_module(module)
    return {"skipped": missing}


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def look_at_package(module: str) -> dict[str, Any]:
    """Import an optional package of kernels."""
    found = importlib.import_module(module)
    return {"version": str(getattr(found, "__version__", "")) or None}


def look_at_family(name: str, preset: str) -> dict[str, Any]:
    """Bind a small model of the family, and compute a loss and its gradient with it."""
    import torch

    from autotune.models.family import family_of
    from autotune.models.resolve import resolve_model

    family = family_of(name)
    model = resolve_model(preset, load_weights=False)
    module = family.build(model, dtype=torch.float32, kernels={})
    bound = family.implementations(module)
    print("\n" + MARK + json.dumps({"subject": f"bound {name}", "bound": bound}), flush=True)
    return {"bound": bound, "gradient": _gradient(family, module)}


class _Inputs:
    """One short row without padding."""

    attention_mask = None
    position_ids = None
    boundaries = None

    def __init__(self, ids: Any) -> None:
        self.input_ids = self.labels = ids


def _gradient(family: Any, module: Any) -> bool:
    import torch

    from autotune.models.weights import rebuild_buffers

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module.to_empty(device=device)
    generator = torch.Generator(device=device).manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.02, generator=generator)
    rebuild_buffers(module)
    ids = torch.arange(16, device=device).reshape(1, 16)
    loss = family.loss_sum(module, _Inputs(ids))
    torch.autograd.backward(loss)
    norms = [p.grad.norm() for p in module.parameters() if p.grad is not None]
    total = torch.stack(norms).norm() if norms else torch.zeros(())
    return bool(torch.isfinite(loss)) and bool(torch.isfinite(total)) and float(total) > 0.0


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    tell("torch", look_at_torch)
    for name in request["backends"]:
        tell(f"backend {name}", functools.partial(look_at_backend, name))
    for module in request["packages"]:
        tell(f"package {module}", functools.partial(look_at_package, module))
    for name, preset in request["families"].items():
        tell(f"family {name}", functools.partial(look_at_family, name, preset))


if __name__ == "__main__":
    main()
