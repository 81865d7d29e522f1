"""A DeepSpeed JSON as a configuration of a study: what its engine settings are, by our names.

Only ``zero_optimization``, DeepCompile and the micro-batch are taken over: the rest is the work
itself (optimizer, precision, clipping, global batch), which a comparison keeps equal. What the
file says otherwise of it is told, and what cannot be taken over is refused: the settings that run
are rendered again and compared with the file.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from autotune.backends.base import backend_of
from autotune.contract.plan import CommandWorkload, Reference, Workload
from autotune.errors import AutotuneError, InputError
from autotune.knobs.knob import Knob
from autotune.search.planning import Planner
from autotune.space.model import Config
from autotune.space.search_space import SHARED_OWNERS

AUTO: Final = "auto"
ENGINES: Final = ("zero3", "deepspeed")
"""Backends that run DeepSpeed, the one to try first first."""
MAX_BYTES: Final = 1024 * 1024
WORK: Final = ("gradient_clipping", "bf16", "fp16", "data_types", "communication_data_type")
"""Keys of the file that the workload decides, compared where the file has them."""
_LEAVES: Final = "leaf_module"
"""Section with the modules that stage 3 gathers as a whole."""
_OLD_NAMES: Final = (
    "prefetch_bucket_size",
    "param_persistence_threshold",
    "model_persistence_threshold",
    "max_live_parameters",
    "max_reuse_distance",
    "module_granularity_threshold",
    "use_all_reduce_for_fetch_params",
)
"""Fields of ``runtime/zero/config.py`` (0.19.8) that are also read under ``stage3_`` + name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FromFile:
    """A configuration with what the user should know of it."""

    config: Config
    notes: tuple[str, ...]


def read(path: Path, planner: Planner) -> FromFile:
    """Return the configuration that a DeepSpeed JSON describes.

    Raises:
        InputError: It is no DeepSpeed JSON, or says what the study's engine cannot be told.
    """
    if isinstance(planner.workload, CommandWorkload):
        raise InputError(
            "the study times a program of your own, which a DeepSpeed JSON cannot be given to here",
            hint="compare trials of the study by their numbers",
        )
    data = _load(path)
    zero = data.get("zero_optimization")
    if not isinstance(zero, Mapping):
        raise InputError(
            f"{path} has no section zero_optimization", hint="give a DeepSpeed configuration"
        )
    backend = _backend(path, planner, zero)
    values: dict[str, Any] = {}
    for key, value in zero.items():
        values |= _setting(path, planner, backend, str(key), value)
    values |= _compiled(path, planner, backend, data.get("compile"))
    rows = data.get("train_micro_batch_size_per_gpu", AUTO)
    if rows != AUTO:
        name = "workload.micro_batch"
        values[name] = _typed(path, planner.space.knobs[name], rows)
    config = planner.space.config_of(backend, values)
    refusal = planner.refusal(config)
    if refusal is not None:
        raise InputError(f"{path} cannot run here: {refusal.reason}")
    rendered = _rendered(planner, config)
    _refuse_differences(path, zero, rendered.get("zero_optimization", {}), planner, backend)
    notes = (*_of_the_work(data, rendered, planner), *_unsaid(planner, config))
    return FromFile(config=config, notes=notes)


def _load(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path} is larger than a DeepSpeed configuration is")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no JSON file: {error}") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} is no DeepSpeed configuration: it holds no object")
    return data


def _backend(path: Path, planner: Planner, zero: Mapping[str, Any]) -> str:
    """The study's engine that can run the file's stage."""
    stage = zero.get("stage", 0)
    engines = [name for name in ENGINES if name in planner.space.backends]
    if not engines:
        raise InputError(
            f"the study tunes {', '.join(planner.space.backends)}, and {path} is for DeepSpeed",
            hint="compare it in a study whose space file has DeepSpeed as a backend",
        )
    for name in engines:
        if stage == 3 or f"{name}.zero_stage" in planner.space.knobs:
            return name
    raise InputError(
        f"{path} is for ZeRO stage {stage!r}, and the study runs stage 3",
        hint="give a stage 3 file",
    )


def _setting(path: Path, planner: Planner, backend: str, key: str, value: Any) -> dict[str, Any]:
    """One entry of ``zero_optimization`` by full names."""
    knobs = planner.space.knobs
    name = f"stage3_{key}" if key in _OLD_NAMES else key
    if key == "stage":
        stage = f"{backend}.zero_stage"
        return {stage: _typed(path, knobs[stage], value)} if stage in knobs else {}
    if key == _LEAVES:
        return {}  # of the model, whatever the configuration: compared when it is rendered
    full = f"{backend}.{name}"
    if full not in knobs:
        raise InputError(
            f"{path}: zero_optimization.{key} is no setting that autotune knows",
            hint="remove it, or put it under unverified: in the space file of a new study",
        )
    if knobs[full].always_dead:
        return {}
    if isinstance(value, Mapping):
        return _section(path, knobs, full, value)
    if value == AUTO:
        assert isinstance(planner.workload, Workload)
        rules = backend_of(backend).auto(planner.workload)
        if full not in rules:
            raise InputError(f"{path}: zero_optimization.{key} is auto, for which there is no rule")
        return {full: rules[full]}
    return {full: _typed(path, knobs[full], value)}


def _compiled(path: Path, planner: Planner, backend: str, section: Any) -> dict[str, Any]:
    """DeepCompile's switch, which stands in a section of its own."""
    name = f"{backend}.deepcompile"
    if not isinstance(section, Mapping) or "deepcompile" not in section:
        return {}
    return {name: _typed(path, planner.space.knobs[name], section["deepcompile"])}


def _section(
    path: Path, knobs: Mapping[str, Knob], full: str, section: Mapping[str, Any]
) -> dict[str, Any]:
    """A section such as ``offload_optimizer: {device, pin_memory}``."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        name = full if key == "device" else f"{full}_{key}"
        if name not in knobs:
            raise InputError(f"{path}: {full.partition('.')[2]}.{key} is no setting that is known")
        found[name] = _typed(path, knobs[name], value)
    return found


def _typed(path: Path, knob: Knob, value: Any) -> Any:
    """The value with the knob's type and inside its bounds; ``5e8`` is a whole number."""
    wrong = InputError(f"{path}: {knob.name} cannot be {value!r}: it is of type {knob.type}")
    if value in knob.choices and not isinstance(value, int | float):
        return value
    if knob.type == "bool":
        if not isinstance(value, bool):
            raise wrong
        return value
    if knob.type == "text":
        if value not in knob.choices:
            raise wrong
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong
    if knob.type == "int":
        if isinstance(value, float) and not value.is_integer():
            raise wrong
        value = int(value)
    low, high = knob.low, knob.high
    if (low is not None and value < low) or (high is not None and value > high):
        raise InputError(f"{path}: {knob.name} {value} is outside what the engine takes")
    return value


def _rendered(planner: Planner, config: Config) -> dict[str, Any]:
    plan = planner.plan(
        config, number=0, attempt=0, purpose="remeasurement", reference=Reference(), racing=None
    )
    try:
        return backend_of(config.backend).render(plan)
    except AutotuneError as error:
        raise InputError(error.message, hint=error.hint) from error


def _refuse_differences(
    path: Path,
    asked: Mapping[str, Any],
    runs: Mapping[str, Any],
    planner: Planner,
    backend: str,
) -> None:
    for key, value in asked.items():
        name = f"stage3_{key}" if key in _OLD_NAMES else key
        knob = planner.space.knobs.get(f"{backend}.{name}")
        is_section = isinstance(value, Mapping) and key != _LEAVES
        if value == AUTO or (knob is not None and knob.always_dead) or is_section:
            continue
        if (name in runs or key == _LEAVES) and runs.get(name) != value:
            raise InputError(
                f"{path}: zero_optimization.{key} is {value!r}, but the study runs "
                f"{runs.get(name)!r}"
            )


def _of_the_work(
    data: Mapping[str, Any], rendered: Mapping[str, Any], planner: Planner
) -> Iterator[str]:
    """What the file says otherwise of the work that both sides do."""
    batch = data.get("train_batch_size", AUTO)
    if batch not in (AUTO, planner.workload.global_batch):
        yield (
            f"its train_batch_size {batch} is not used: both sides do the study's "
            f"{planner.workload.global_batch} samples an iteration"
        )
    for key in WORK:
        yield from _other(key, data.get(key, AUTO), rendered.get(key))
    optimizer = data.get("optimizer")
    if isinstance(optimizer, Mapping):
        mine = rendered["optimizer"]["params"]
        theirs = optimizer.get("params")
        for key, value in (theirs if isinstance(theirs, Mapping) else {}).items():
            yield from _other(f"optimizer.{key}", value, mine.get(key))


def _unsaid(planner: Planner, config: Config) -> Iterator[str]:
    """Tuned settings that no such file holds: those of kernels, environment and checkpointing."""
    said = ("workload.micro_batch", "workload.max_tokens")
    names = [
        param.name
        for param in planner.space.params
        if param.owner in SHARED_OWNERS and param.knob in config.values and param.knob not in said
    ]
    if names:
        yield f"it says nothing of {', '.join(names)}: there the baseline's values run"


def _other(key: str, asked: Any, runs: Any) -> Iterator[str]:
    if isinstance(asked, Mapping) and isinstance(runs, Mapping):
        for name, value in asked.items():
            if name in runs:
                yield from _other(f"{key}.{name}", value, runs[name])
    elif asked != AUTO and runs is not None and asked != runs:
        yield f"its {key} {asked!r} is not used: both sides run with the study's {runs!r}"
