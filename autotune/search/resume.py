"""Begins a study or goes on with it, and says what changed since it was last searched."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.contract import codec
from autotune.errors import AutotuneError
from autotune.search import history
from autotune.search.preflight import Prepared
from autotune.space.loader import parse_space
from autotune.space.search_space import SearchSpace
from autotune.store.records import Epoch, StudyContents, StudyRecord


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opening:
    """The study's record as it is to be saved, and what to tell the user."""

    record: StudyRecord
    messages: tuple[str, ...]


def begin(prepared: Prepared) -> StudyRecord:
    """Return the record of a new study."""
    now = time.time()
    space = prepared.space
    return StudyRecord(
        name=prepared.folder.name,
        created_at=now,
        updated_at=now,
        space_text=space.text,
        space_file=space.file,
        overrides=space.overrides,
        space_fingerprint=space.fingerprint,
        context=prepared.context,
        workload=codec.to_json(prepared.workload),
        topology=prepared.topology,
        environment=prepared.environment,
        launcher=prepared.where.launcher,
        sampler=prepared.sampler,
        seed=space.search.seed,
    )


def go_on(contents: StudyContents, prepared: Prepared) -> Opening:
    """Return the record of a study that is searched again, and what changed.

    With another space old trials inside the new one still inform. With another workload,
    topology or environment they are kept and shown, but not told, compared or counted.
    """
    old = contents.study
    fresh = begin(prepared)
    baseline = _baseline_trial(contents, prepared)
    messages: list[str] = []
    history_of = old.history
    if (old.space_fingerprint, old.context) != (fresh.space_fingerprint, fresh.context):
        history_of = (*history_of, _epoch(old))
    if old.space_fingerprint != fresh.space_fingerprint:
        messages += ["the space changed:", *_space_changes(old, prepared.space)]
    if old.context != fresh.context:
        messages += [
            "times before are not comparable, because this changed:",
            *(f"  {line}" for line in context_changes(old, fresh)),
            _kept(contents, prepared, baseline),
        ]
    record = dataclasses.replace(
        fresh,
        created_at=old.created_at,
        history=history_of,
        baseline_trial=baseline,
        outside=_outside(contents, prepared.space),
    )
    return Opening(record=record, messages=tuple(messages))


def _kept(contents: StudyContents, prepared: Prepared, baseline: int | None) -> str:
    """What becomes of earlier trials when the context is another one, or one of before again."""
    comparable = sum(trial.header.context == prepared.context for trial in contents.trials)
    other = len(contents.trials) - comparable
    text = f"trials kept and shown, but not counted: {other}"
    if comparable:
        text += f"; of an earlier search under the same conditions, and used again: {comparable}"
    return text if baseline is not None else f"{text}; the baseline is measured anew"


def _epoch(old: StudyRecord) -> Epoch:
    return Epoch(
        space_text=old.space_text,
        overrides=old.overrides,
        space_fingerprint=old.space_fingerprint,
        context=old.context,
        until=time.time(),
    )


def _baseline_trial(contents: StudyContents, prepared: Prepared) -> int | None:
    """The trial that already ran what is now the baseline, in the present context."""
    key = prepared.space.baseline_config().key
    found = [
        trial
        for trial in contents.trials
        if trial.header.key == key and trial.header.context == prepared.context
    ]
    found.sort(key=lambda trial: (trial.header.origin != "baseline", trial.number))
    return found[0].number if found else None


def _outside(contents: StudyContents, space: SearchSpace) -> tuple[int, ...]:
    return tuple(
        trial.number
        for trial in contents.trials
        if trial.header.space_fingerprint != space.fingerprint
        and not _is_inside(history.config_of(trial), space)
    )


def _is_inside(config: Any, space: SearchSpace) -> bool:
    return space.assignment_of(config) is not None and space.violated(config) is None


def _space_changes(old: StudyRecord, space: SearchSpace) -> Iterator[str]:
    try:
        before = parse_space(
            old.space_text,
            file=old.space_file,
            overrides=old.overrides,
            base=Path(old.space_file).absolute().parent,
        )
    except AutotuneError:
        yield "  the earlier space file can no longer be read"
        return
    for line in before.differences(space):
        yield f"  {line}"


def context_changes(old: StudyRecord, new: StudyRecord) -> Iterator[str]:
    """Say what of workload, topology and environment makes times of the two not comparable."""
    pairs = [
        *_pairs("workload", old.workload, new.workload),
        *_pairs("topology", codec.to_json(old.topology), codec.to_json(new.topology)),
        *_pairs("", old.environment, new.environment),
    ]
    changed = [(name, a, b) for name, a, b in pairs if a != b and name != "git"]
    for name, before, after in changed:
        short = all(len(str(item)) <= 60 for item in (before, after))
        yield f"{name}: {before} -> {after}" if short else f"{name}"
    if not changed:
        yield "the environment"


def _pairs(prefix: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Leaves of two mappings with equal paths; what one of them lacks is ``None`` there."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        yield prefix, old, new
        return
    for key in sorted({*old, *new}):
        name = f"{prefix}.{key}" if prefix else str(key)
        yield from _pairs(name, old.get(key), new.get(key))
