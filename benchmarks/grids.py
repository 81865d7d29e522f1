"""The grid of a table: a space file whose parameters are lists, with its rules under ``x-table``.

``x-table`` holds ``name``, ``measuring`` (the rules of warm-up and window, as
``contract.plan.Measuring`` has them), ``seed`` (of the order of the launches) and, where the model
is a published one cut down, ``depth``. A search reads the same file and ignores ``x-table``, so a
table's grid is also the space file to replay it with.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from autotune.contract import codec, hostmemory, jsonfile
from autotune.contract.plan import Measuring, Plan, Workload
from autotune.contract.table import Depth, TableDevice, TableHeader
from autotune.errors import InputError
from autotune.search.planning import Planner
from autotune.search.preflight import Prepared
from autotune.search.proposals import MAX_LISTED, list_assignments, space_size
from autotune.space.loader import find_space
from autotune.space.model import Config

FOLDER = Path(__file__).resolve().parent / "tables"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSpec:
    """What ``x-table`` says."""

    name: str
    measuring: Measuring
    depth: Depth | None = None
    """Decoder layers kept, and how many the published model has."""
    seed: int = 0


def find_grid(name: str) -> Path:
    """A path, or the bare name of a grid in ``benchmarks/tables``."""
    shipped = FOLDER / f"{name.removesuffix('.yaml')}.yaml"
    return shipped if not Path(name).exists() and shipped.is_file() else find_space(name)


def read_spec(path: Path) -> TableSpec:
    """Return what a grid file says under ``x-table``.

    Raises:
        InputError: It says nothing, or something that is not known.
    """
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or "x-table" not in data:
        raise InputError(f"{path} has no x-table: it is a space, and no grid")
    return codec.from_json(TableSpec, data["x-table"], where=f"{path}: x-table")


@dataclasses.dataclass(kw_only=True)
class GridPlanner(Planner):
    """Plans whose windows are those of the table, and that no rule of racing ends early."""

    rules: Measuring

    def plan(self, config: Config, **options: Any) -> Plan:
        return dataclasses.replace(super().plan(config, **options), measuring=self.rules)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """All that a recording needs to know before it starts."""

    spec: TableSpec
    prepared: Prepared
    planner: GridPlanner
    configs: tuple[Config, ...]
    """By canonical key different; the baseline is the first."""
    header: TableHeader


def make_grid(path: Path, spec: TableSpec, prepared: Prepared) -> Grid:
    """List the grid's configurations and describe the table.

    Raises:
        InputError: It is no grid, or the model's depth is another than it says.
    """
    space, planner = prepared.space, prepared.planner
    size = space_size(space)
    if size is None or size > MAX_LISTED:
        raise InputError(f"{path} is no grid: give every parameter as a list of choices")
    _check_depth(spec, prepared)
    refused: dict[str, int] = {}
    found = {(baseline := space.baseline_config()).key: baseline}
    for config in _listed(prepared):
        refusal = planner.refusal(config)
        if refusal is not None:
            refused[refusal.reason] = refused.get(refusal.reason, 0) + 1
        else:
            found.setdefault(config.key, config)
    rules = dataclasses.replace(spec.measuring, racing=None)
    facts = {key: value for key, value in prepared.environment.items() if key != "hostname"}
    header = TableHeader(
        name=spec.name,
        recorded_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        grid=space.text,
        overrides=space.overrides,
        grid_fingerprint=jsonfile.digest([space.fingerprint, codec.to_json(spec)]),
        num_configs=len(found),
        refused=refused,
        baseline_key=baseline.key,
        depth=spec.depth,
        workload=_workload(prepared),
        topology=prepared.topology,
        environment=facts,
        devices=tuple(
            TableDevice(name=one.name, memory_bytes=one.memory_bytes)
            for one in prepared.devices.found[: prepared.topology.processes]
        ),
        host_memory_bytes=hostmemory.total_bytes(),
        measuring=rules,
        memory_margin_share=space.search.memory_margin_share,
        facts=dict(space.limits.facts),
        seed=spec.seed,
    )
    made = {field.name: getattr(planner, field.name) for field in dataclasses.fields(planner)}
    return Grid(
        spec=spec,
        prepared=prepared,
        planner=GridPlanner(**made, rules=rules),
        configs=tuple(found.values()),
        header=header,
    )


def _listed(prepared: Prepared) -> Iterator[Config]:
    space = prepared.space
    for assignment in list_assignments(space):
        config = space.resolve(assignment)
        if space.violated(config) is None:
            yield config


def _check_depth(spec: TableSpec, prepared: Prepared) -> None:
    assert isinstance(prepared.workload, Workload), "a grid of a command is not offered"
    layers = prepared.workload.model.config["num_hidden_layers"]
    if spec.depth is not None and layers != spec.depth.layers:
        raise InputError(
            f"x-table says that the model has {spec.depth.layers} layers, and it has {layers}"
        )


def _workload(prepared: Prepared) -> dict[str, Any]:
    """The workload without places of the machine."""
    data: dict[str, Any] = codec.to_json(prepared.workload)
    data["model"]["weights"] = None
    data["samples"]["token_file"] = None
    return data


def differences(old: TableHeader, new: TableHeader) -> list[str]:
    """What makes launches of the two not parts of one table.

    Not the date, the system's release, the checkout, or the exact amount of host memory: launches
    on another machine of the same kind belong to it.
    """
    return list(_pairs("", _kept(old), _kept(new)))


def _kept(header: TableHeader) -> dict[str, Any]:
    data: dict[str, Any] = codec.to_json(header)
    for key in ("recorded_at", "host_memory_bytes", "grid"):
        del data[key]
    del data["workload"]["model"]["name"]
    for key in ("system", "git"):
        data["environment"].pop(key, None)
    return data


def _pairs(prefix: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from _pairs(f"{prefix}.{key}".strip("."), old.get(key), new.get(key))
    elif old != new:
        shown = f"{old!r} -> {new!r}"
        yield f"{prefix}: {shown}" if len(shown) <= 120 else prefix
