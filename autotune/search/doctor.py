"""What ``autotune doctor`` looks at: whether a search could run here, and what it would run on.

Nothing is changed and nothing is written. The heavy libraries are imported by another process
(``search/doctor_probe.py``); this one reads metadata, files and variables.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import autotune
from autotune import registry
from autotune.errors import EnvironmentFault
from autotune.knobs.known_bad import KnownBad
from autotune.launchers.environment import server_environment
from autotune.models.hidden_size import hidden_size
from autotune.models.presets import PRESETS
from autotune.search import doctor_machine
from autotune.search.checks import Check, State
from autotune.search.devices import Devices, visible_devices
from autotune.search.doctor_probe import MARK
from autotune.search.kernels import kernel_table
from autotune.search.packages import known_bad, public_version

PROBE_LIMIT_S: Final = 180.0
"""Longest wait for the imports and the small steps (s)."""
_NEEDED: Final = (
    "torch", "transformers", "optuna", "sqlalchemy", "alembic", "pyyaml", "typer", "rich",
    "safetensors",
)  # fmt: skip
_OPTIONAL: Final = (
    *("deepspeed", "accelerate", "triton", "optuna-dashboard", "scipy"),
    *("peft", "bitsandbytes"),
)
_KERNELS: Final = {
    "flash_attn": ("flash-attn", "attention"),
    "fla": ("flash-linear-attention", "gated delta net layers"),
    "causal_conv1d": ("causal-conv1d", "the convolution of gated delta net layers"),
    "liger_kernel": ("liger-kernel", "fused norms and losses"),
    "kernels": ("kernels", "kernels from the hub"),
    "tilelang": ("tilelang", "flash-linear-attention on Hopper"),
}
"""Module to its distribution and what it is for."""

Findings = dict[str, dict[str, Any]]


def examine(runs: Path) -> tuple[Check, ...]:
    """Look at everything.

    Args:
        runs: Where studies would lie.

    Raises:
        EnvironmentFault: The probe could not be started.
    """
    devices = visible_devices()
    installed = {
        module: version
        for module, (package, _) in _KERNELS.items()
        if (version := public_version(package)) is not None
    }
    findings: Findings = {"ended": {"error": "torch is not installed"}}
    if public_version("torch"):
        findings = probe(tuple(installed), devices)
    checks = [_versions(), _packages(), _devices(devices, findings.get("torch"))]
    checks += _backends(findings)
    checks += [*_kernels(installed, findings, devices), *kernel_table(devices)]
    checks += _families(findings)
    checks += [_fla(installed, findings)] if "fla" in installed else []
    checks += doctor_machine.checks(runs, devices)
    return tuple(checks)


def probe(packages: tuple[str, ...], devices: Devices) -> Findings:
    """Import the heavy libraries in a process of its own; return what was found, by subject."""
    request = {
        "backends": registry.names("backends"),
        "packages": packages,
        "families": _presets(),
    }
    environment = server_environment(
        os.environ,
        device="cuda" if devices.found else "cpu",
        package_root=Path(autotune.__file__).parent.parent,
    )
    ended: str | None = None
    try:
        done = subprocess.run(
            # -P, as for trials: what lies in the working directory must not shadow a library.
            [sys.executable, "-P", "-m", "autotune.search.doctor_probe"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=PROBE_LIMIT_S,
            check=False,
            env=environment,
        )
        output = done.stdout
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["without a word"])[-1]
            ended = f"the process that imports it ended early ({last[:300]})"
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode(errors="replace") if error.stdout else ""
        ended = f"it did not end within {PROBE_LIMIT_S:.0f} s"
    except OSError as error:
        raise EnvironmentFault(f"no process can be started: {error.strerror or error}") from error
    found = read_findings(output)
    if ended is not None:
        found["ended"] = {"error": ended}
    return found


def _presets() -> dict[str, str]:
    """Family to its smallest preset; families without one are not looked at."""
    found = {}
    for family in registry.names("models"):
        presets = [name for name, config in PRESETS.items() if config["model_type"] == family]
        if presets:
            found[family] = min(presets, key=lambda name: hidden_size(PRESETS[name])[0])
    return found


def read_findings(output: str) -> Findings:
    """Pick the probe's lines out of whatever libraries printed."""
    found: Findings = {}
    for line in output.splitlines():
        if line.startswith(MARK):
            finding = json.loads(line.removeprefix(MARK))
            found[finding.pop("subject")] = finding
    return found


def _error(findings: Findings, subject: str) -> str | None:
    """Why a subject failed, ``None`` if it did not."""
    if subject in findings:
        error = findings[subject].get("error")
        return None if error is None else str(error)
    ended = findings.get("ended")
    return "it was not reached" if ended is None else str(ended["error"])


def _missing(error: str) -> str | None:
    """Say how to get the module that an import did not find."""
    found = re.search(r"No module named '([A-Za-z_]\w*)", error)
    return None if found is None else f"pip install {found[1].replace('_', '-')}"


def _versions() -> Check:
    python = ".".join(map(str, sys.version_info[:3]))
    text = f"autotune {autotune.__version__}, Python {python}"
    data = {"autotune": autotune.__version__, "python": python, "executable": sys.executable}
    return Check(name="versions", state="ok", text=text, data=data)


def _packages() -> Check:
    found = {name: _version(name) for name in (*_NEEDED, *_OPTIONAL)}
    missing = [name for name in _NEEDED if found[name] is None]
    text = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    if missing:
        return Check(
            name="packages",
            state="failed",
            text=f"not installed: {', '.join(missing)}",
            hint=f"pip install {' '.join(missing)}",
            data=found,
        )
    return Check(name="packages", state="ok", text=text, data=found)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _devices(devices: Devices, torch: dict[str, Any] | None) -> Check:
    data: dict[str, Any] = {
        "found": [{"name": one.name, "memory_bytes": one.memory_bytes} for one in devices.found],
        "torch": torch,
    }
    seen = len((torch or {}).get("devices") or ())
    error = None if torch is None else torch.get("error")
    if error is not None:
        return Check(
            name="devices",
            state="failed",
            text=f"torch cannot be used: {error}",
            hint=_missing(error) or "'python -P -c \"import torch\"' shows what it misses",
            data=data,
        )
    if devices.note:
        return Check(
            name="devices",
            state="warning",
            text=f"GPUs are not used: {devices.note}",
            hint="install a CUDA build of torch",
            data=data,
        )
    if not devices.found:
        text = "no GPU is visible: trials run as CPU processes and show how it works"
        return Check(name="devices", state="note", text=text, data=data)
    names = sorted({one.name for one in devices.found})
    text = f"{len(devices.found)} × {', '.join(names)}"
    if seen != len(devices.found) or (torch or {}).get("device_step") is not True:
        return Check(
            name="devices",
            state="failed",
            text=f"{text} by the driver, but torch can use {seen}",
            hint="check the driver against torch's CUDA version, and CUDA_VISIBLE_DEVICES",
            data=data,
        )
    return Check(name="devices", state="ok", text=text, data=data)


def _backends(findings: Findings) -> list[Check]:
    checks, usable = [], 0
    bad_for: dict[KnownBad, list[str]] = {}
    for name in registry.names("backends"):
        error = _error(findings, f"backend {name}")
        hint = None if error is None else _missing(error)
        for bad in known_bad(name):
            error = f"{bad.package} {bad.version} cannot be used with it: {bad.reason}"
            hint = f"pip install --upgrade {bad.package}"
            bad_for.setdefault(dataclasses.replace(bad, backend=""), []).append(name)
        usable += error is None
        checks.append(
            Check(
                name=f"backend {name}",
                state="ok" if error is None else "warning",
                text="runs here" if error is None else f"does not run here: {error}",
                hint=hint,
                data={"usable": error is None},
            )
        )
    checks += [
        Check(
            name=f"known-bad {bad.package}",
            state="failed",
            text=f"{bad.package} {bad.version} with {', '.join(names)}: {bad.reason}",
            hint=f"pip install --upgrade {bad.package}",
        )
        for bad, names in bad_for.items()
    ]
    if not usable:
        checks.append(
            Check(name="backends", state="failed", text="none of the backends can be imported here")
        )
    return checks


def _kernels(installed: dict[str, str], findings: Findings, devices: Devices) -> list[Check]:
    checks = []
    for module, (package, purpose) in _KERNELS.items():
        data: dict[str, Any] = {"version": installed.get(module), "usable": False}
        state: State
        hint = None
        if module not in installed:
            text, state = f"not installed (for {purpose})", "note"
        elif (error := _error(findings, f"package {module}")) is not None:
            text, state = f"{installed[module]} cannot be imported: {error}", "warning"
            hint = _missing(error) or f"install a build of {package} that fits this torch"
        elif not devices.found:
            text, state = f"{installed[module]} is installed and needs a GPU", "note"
        else:
            text, state = f"{installed[module]} can be imported (for {purpose})", "ok"
            data["usable"] = True
        checks.append(
            Check(name=f"kernels {package}", state=state, text=text, hint=hint, data=data)
        )
    return checks


def _families(findings: Findings) -> list[Check]:
    """What each family's layers are bound to, and whether a gradient comes back through them."""
    checks = []
    for family in _presets():
        subject = f"family {family}"
        error = _error(findings, subject)
        bound = findings.get(f"bound {family}", {}).get("bound", {})
        state: State
        shown = ", ".join(f"{layer}: {path}" for layer, path in bound.items())
        if error is None and findings[subject]["gradient"]:
            state, text = "ok", f"forward and backward work; {shown}"
        else:
            why = error or "its gradient is zero or not finite"
            state, text = "failed" if error is None else "warning", f"{why}; {shown}"
        checks.append(Check(name=f"model {family}", state=state, text=text, data={"bound": bound}))
    return checks


def _fla(installed: dict[str, str], findings: Findings) -> Check:
    """flash-linear-attention refuses Hopper with some Tritons, and the library falls back.

    Its backward gives wrong gradients there, unless TileLang is installed.
    """
    devices = findings.get("torch", {}).get("devices") or []
    hopper = any(tuple(device["capability"]) == (9, 0) for device in devices)
    triton = _numbers(public_version("triton"))
    bad = hopper and (3, 4) <= triton < (3, 7, 1) and "tilelang" not in installed
    if not bad:
        text = "flash-linear-attention's backward may be used"
        return Check(name="known-bad kernels", state="ok", text=text)
    return Check(
        name="known-bad kernels",
        state="warning",
        text="flash-linear-attention refuses Hopper with this Triton (wrong gradients), so the "
        "model falls back to torch",
        hint="pip install tilelang, or Triton 3.7.1 or newer",
    )


def _numbers(version: str | None) -> tuple[int, ...]:
    parts = (version or "").split(".")
    return tuple(int(part) for part in parts if part.isdecimal())
