"""BUG-037: which settings make an engine compile an extension; all others are shown not to."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import no_builds
import pytest
from support_trials import BF16, FP32, defaults, make_plan, measured, run_trial

from autotune import registry
from autotune.backends.base import backend_of
from autotune.contract.plan import Plan
from autotune.knobs.knob import Knob

HERE = str(Path(__file__).parent)
BACKENDS = ("ddp", "fsdp2", "zero3", "deepspeed")
OFFLOADED = {"offload_optimizer": "cpu", "offload_param": "cpu"}


def other_value(knob: Knob) -> Any:
    """A switch turned over, the last choice of several; ``None`` for a number.

    Also for what needs a device or a compiler: it is left out of a search that has none.
    """
    if knob.needs:
        return None
    if knob.type == "bool":
        return knob.default is not True
    allowed = [v for v in knob.choices if v not in [value for value, _ in knob.refused]]
    return allowed[-1] if allowed else None


def all_changed(backend: str, **more: Any) -> Plan:
    """A plan with every switch and choice away from its default that the backend takes so."""
    changes: dict[str, Any] = {f"{backend}.{name}": value for name, value in more.items()}
    plan = make_plan(backend, changes={"workload.micro_batch": 8, **changes}, verify=())
    for knob in importlib.import_module(f"autotune.knobs.{backend}").KNOBS:
        value = other_value(knob)
        if value is None or knob.dead_when == "true" or knob.full_name in changes:
            continue
        config = {**defaults(backend), **changes, knob.full_name: value}
        if backend_of(backend).validate(config, plan.training, plan.topology) is None:
            changes[knob.full_name] = value
    config = {**plan.config, **changes}
    return dataclasses.replace(plan, config=config)


COMPILED = {
    "zero_quantized_weights": "QuantizerBuilder",
    "zero_quantized_gradients": "QuantizerBuilder",
    "deepcompile": "DeepCompileBuilder",
}
"""Setting to the extension that is compiled where it is on; all of DeepSpeed's stage 3."""
LOADED = {
    "compile": {"DeepCompileBuilder"},
    "runtime/comm": {"QuantizerBuilder"},
    "runtime/zero": {"QuantizerBuilder"},
    # Only by `DS_PIN_MEMORY_BACKEND=native`, a variable of the user's own.
    "utils": {"PinMemoryBuilder"},
    # Switched off (deepspeed_engine.py, _quiet); of another accelerator.
    "comm": {"ShareMemCommBuilder", "CCLCommBuilder"},
    # Offload to a disk is no choice of any knob, and no trial writes a checkpoint.
    "runtime/swap_tensor": {"AsyncIOBuilder", "GDSBuilder"},
    "runtime/model_checkpointing": {"AsyncIOBuilder", "GDSBuilder"},
    "nvme": {"AsyncIOBuilder", "GDSBuilder"},
    "io": {"UtilsBuilder"},
    # Refused under `unverified`.
    "runtime/zenflow": {"CPUAdamBuilder"},
    # Optimizers and layers that no plan names: the optimizer is torch's, the layers transformers'.
    "ops/adam": {"CPUAdamBuilder", "FusedAdamBuilder"},
    "ops/adagrad": {"CPUAdagradBuilder"},
    "ops/lion": {"CPULionBuilder", "FusedLionBuilder"},
    "ops/lamb": {"FusedLambBuilder"},
    "ops/fp_quantizer": {"FPQuantizerBuilder"},
    "ops/random_ltd": {"RandomLTDBuilder"},
    "ops/deepspeed4science": {"EvoformerAttnBuilder"},
    "ops/transformer": {
        "SpatialInferenceBuilder",
        "StochasticTransformerBuilder",
        "TransformerBuilder",
    },
}
"""Folders of DeepSpeed to the extensions that are loaded there; without ``inference``."""
_LOAD = re.compile(r"(\w+Builder)\(\)\s*\.load\(|create_op_builder\(\"(\w+)\"\)")


def knobs_of(backend: str) -> tuple[Knob, ...]:
    return backend_of(backend).knobs


def test_what_is_compiled_at_first_use_says_so() -> None:
    named = {
        (backend, knob.name): [knob.extension(value) for value in (knob.default, True)]
        for backend in BACKENDS
        for knob in knobs_of(backend)
        if any(need.kind == "compiler" for need in knob.needs)
    }
    assert named == {
        (backend, name): [None, extension]
        for backend in ("zero3", "deepspeed")
        for name, extension in COMPILED.items()
    }


@pytest.mark.parametrize("backend", registry.names("backends"))
def test_who_compiles_can_be_asked_to_do_it_before(backend: str) -> None:
    needs = [[n for n in knob.needs if n.kind == "compiler"] for knob in knobs_of(backend)]
    assert all(need.name for several in needs for need in several)
    assert all(len(several) < 2 or all(n.values for n in several) for several in needs)
    assert any(needs) <= hasattr(backend_of(backend), "load_extension")


def test_no_other_place_of_deepspeed_loads_an_extension() -> None:
    """A version that loads another one, or somewhere else, is to be looked at here."""
    spec = importlib.util.find_spec("deepspeed")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    found: dict[str, set[str]] = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts[:-1]
        if parts[:1] in [("inference",), ("accelerator",)] or "op_builder" in parts:
            continue
        for match in _LOAD.finditer(path.read_text("utf-8")):
            found.setdefault("/".join(parts[:2]), set()).add(match[1] or match[2])
    assert found == LOADED
    builders = "".join(path.read_text("utf-8") for path in (root / "ops/op_builder").glob("*.py"))
    for name in COMPILED.values():
        assert f"class {name}(" in builders


def run(plan: Plan, path: Path, fault: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)
    return run_trial(plan, path, fault=f"no_builds:{fault}")


@pytest.mark.parametrize(
    ("backend", "more", "precision"),
    [
        ("ddp", {}, FP32),
        ("fsdp2", {}, FP32),
        ("zero3", OFFLOADED, FP32),
        ("zero3", OFFLOADED, BF16),
        ("deepspeed", {"zero_stage": 1, "offload_optimizer": "cpu"}, FP32),
        ("deepspeed", {"zero_stage": 2, "offload_optimizer": "cpu"}, BF16),
        ("deepspeed", {"zero_stage": 3, **OFFLOADED}, FP32),
    ],
)
def test_extremes_of_the_space_compile_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, more: Any, precision: Any
) -> None:
    plan = all_changed(backend, **more)
    training = dataclasses.replace(plan.training, precision=precision)
    plan = dataclasses.replace(plan, workload=training)
    measured(run(plan, tmp_path, "forbid", monkeypatch), tmp_path)


def test_it_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan("zero3", changes={"zero3.offload_optimizer": "cpu"})
    records = run(plan, tmp_path, "forbid_beside_deepspeeds_adam", monkeypatch)
    for record in records:
        assert record is not None
        assert record.error is not None
        assert no_builds.MESSAGE in record.error.traceback


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("offload", ["none", "cpu"])
def test_on_gpus_too_the_optimizer_is_torchs(stage: int, offload: str) -> None:
    changes = {"deepspeed.zero_stage": stage, "deepspeed.offload_optimizer": offload}
    plan = make_plan("deepspeed", changes=changes)
    plan = dataclasses.replace(plan, topology=dataclasses.replace(plan.topology, device="cuda"))
    rendered = backend_of("deepspeed").render(plan)
    assert rendered["optimizer"]["params"]["torch_adam"] is True
