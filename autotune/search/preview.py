"""What a search is going to do, in words and as data: ``--dry-run``."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping
from typing import Any, Final

from autotune.contract import hostmemory
from autotune.contract.duration import duration_text
from autotune.contract.plan import CommandWorkload, Workload
from autotune.knobs.words import changed_settings, settings_words, value_words
from autotune.search.confirm import ROUNDS
from autotune.search.loop import NOISE_EVERY
from autotune.search.planning import measuring
from autotune.search.preflight import Prepared
from autotune.search.proposals import space_size
from autotune.space.canonical import domain_words

GIB: Final = 1024**3
OVERHEAD_S: Final = {"cpu": 3.0, "cuda": 30.0}
"""Rough time of a trial beside its timed window (s): start, build, warm-up, probe."""

WIDTH: Final = 100
"""Columns of a line of settings."""


def preview(prepared: Prepared) -> dict[str, Any]:
    """Return the plan of the search as plain data."""
    space, topology = prepared.space, prepared.topology
    rules = measuring(topology)
    each = min(rules.window_s + OVERHEAD_S[topology.device], space.search.max_trial_time_s)
    size = space_size(space)
    trials = prepared.trials if size is None else min(prepared.trials, size + 1)
    confirming = (1 + space.search.finalists) * ROUNDS
    launches = trials + trials // NOISE_EVERY + confirming
    exists = prepared.folder.study_file.exists()
    return {
        "schema_version": 1,
        "dry_run": True,
        "study": prepared.folder.name,
        "resumes": exists,
        **_work(prepared.workload),
        "backends": list(space.backends),
        "topology": {"processes": topology.processes, "device": topology.device},
        "devices": [one.name for one in prepared.devices.found[: topology.processes]],
        "launcher": prepared.where.launcher,
        "environment": prepared.environment,
        "memory_bytes": _memory_bytes(prepared),
        "params": {param.name: domain_words(param.domain) for param in space.params},
        "fixed": dict(space.fixed),
        "constraints": [one.text for one in space.constraints],
        "configurations": size,
        "dropped": [
            {"param": one.param, "value": one.value, "reason": one.reason} for one in space.dropped
        ],
        "baseline": space.params_of(space.baseline_config()),
        "anchors": {one.name: one.assignment for one in prepared.anchors},
        "sampler": prepared.sampler,
        "trials": prepared.trials,
        "confirmation_launches": confirming,
        "estimated_s": {
            "typical": each * launches,
            "longest": space.search.max_trial_time_s * launches,
        },
        "notes": list(prepared.notes),
    }


def _work(workload: CommandWorkload | Workload) -> dict[str, Any]:
    """What an iteration is; a command's model and tokens are not known."""
    model, tokens = None, None
    if isinstance(workload, Workload):
        tokens = sum(workload.samples.lengths) / workload.distinct_batches
        model = {
            "name": workload.model.name,
            "family": workload.model.family,
            "parameters": workload.model.num_parameters,
            "finetune": workload.finetune,
            "trainable": workload.num_trainable,
        }
    return {
        "model": model,
        "command": list(workload.command) if isinstance(workload, CommandWorkload) else None,
        "global_batch": workload.global_batch,
        "tokens_per_iteration": tokens,
    }


def preview_lines(prepared: Prepared) -> list[str]:
    """Return the plan of the search for people."""
    plan = preview(prepared)
    size = plan["configurations"]
    many = size is None or size > 1_000_000
    count = "more than a million" if many else f"at most {size:,}"
    lines = [
        f"study {plan['study']}{' (goes on)' if plan['resumes'] else ''}: {plan['trials']} trials "
        f"with sampler {plan['sampler']}, then {plan['confirmation_launches']} launches to confirm",
        *_work_words(plan),
        f"runs on {plan['topology']['processes']} × {_device(plan)} "
        f"with {', '.join(plan['backends'])}, launcher {plan['launcher']}",
        *_wrapped(f"versions: {_versions(plan['environment'])}"),
        f"memory: {plan['memory_bytes'] / GIB:.1f} GiB for all processes together",
        _iteration_words(plan),
        f"space: {count} configurations",
        *(f"  {name}: {text}" for name, text in plan["params"].items()),
        *(f"  always {name} = {value_words(value)}" for name, value in plan["fixed"].items()),
        *(f"  constraint {text}" for text in plan["constraints"]),
        *_wrapped(f"baseline: {settings_words(plan['baseline'])}"),
        *(line for name, values in plan["anchors"].items() for line in _anchor(plan, name, values)),
        f"about {duration_text(plan['estimated_s']['typical'])}, "
        f"at most {duration_text(plan['estimated_s']['longest'])} (max_trial_time, every launch)",
    ]
    return [*lines, *plan["notes"], "dry run: nothing was started or written"]


def _work_words(plan: dict[str, Any]) -> list[str]:
    model = plan["model"]
    if model is None:
        return _wrapped(f"command {shlex.join(plan['command'])}")
    words = f"model {model['name']}: {model['family']}, {model['parameters']:,} parameters"
    if model["finetune"] != "full":
        words += f"; {model['finetune']} trains {model['trainable']:,} others beside them"
    return [words]


def _iteration_words(plan: dict[str, Any]) -> str:
    tokens = plan["tokens_per_iteration"]
    more = "" if tokens is None else f", {tokens:,.0f} tokens"
    return f"an iteration: {plan['global_batch']} samples{more}"


def _anchor(plan: dict[str, Any], name: str, values: dict[str, Any]) -> list[str]:
    changed = settings_words(changed_settings(values, plan["baseline"]))
    return _wrapped(f"anchor {name}: {changed or 'as the baseline'}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _device(plan: Mapping[str, Any]) -> str:
    names = sorted(set(plan["devices"]))
    return ", ".join(names) if names else str(plan["topology"]["device"])


def _memory_bytes(prepared: Prepared) -> int:
    """What the processes of a trial may use together: the devices' memory, else the host's."""
    topology = prepared.topology
    if topology.device == "cpu":
        return hostmemory.available_bytes()
    return sum(device.memory_bytes for device in prepared.devices.found[: topology.processes])


def _versions(environment: Mapping[str, Any]) -> str:
    found = {"python": environment["python"], **environment["packages"]}
    return ", ".join(f"{name} {version}" for name, version in found.items())
