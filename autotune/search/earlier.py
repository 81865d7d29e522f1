"""The best configurations of earlier studies of the same workload family, as anchors."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

from autotune.contract.folder import StudyFolder
from autotune.contract.plan import CommandWorkload, Topology, Workload
from autotune.errors import AutotuneError
from autotune.store import layout
from autotune.store.importer import read_study
from autotune.store.records import StudyContents, StudyRecord

MAX_EARLIER: Final = 3
"""Earlier studies whose best is tried, the latest first: each costs a launch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlierBest:
    """What another study found faster than its baseline."""

    study: str
    backend: str
    values: dict[str, Any]
    """Full knob name to value."""


def earlier_bests(
    runs: Path, *, but: str, workload: CommandWorkload | Workload, topology: Topology
) -> tuple[EarlierBest, ...]:
    """Return the confirmed bests of the other studies in ``runs``, the latest first.

    Of the same workload family is a study of the same model family and kind of fine-tuning, or the
    same command, and the same kind of device. A study that cannot be read is passed over: it is no
    part of this search.
    """
    found: list[tuple[float, EarlierBest]] = []
    for path in sorted(runs.iterdir()) if runs.is_dir() else ():
        folder = StudyFolder(path.absolute())
        if path.name == but or not layout.verdict_file(folder).is_file():
            continue
        try:
            contents = read_study(folder)
        except (AutotuneError, OSError):
            continue
        if not _same_family(contents.study, workload, topology):
            continue
        best = _best(contents)
        if best is not None:
            found.append((contents.study.updated_at, best))
    found.sort(key=lambda item: item[0], reverse=True)
    return tuple(best for _, best in found[:MAX_EARLIER])


def _same_family(
    study: StudyRecord, workload: CommandWorkload | Workload, topology: Topology
) -> bool:
    if study.topology.device != topology.device:
        return False
    if isinstance(workload, CommandWorkload):
        return study.workload.get("command") == list(workload.command)
    model = study.workload.get("model")
    family = model.get("family") if isinstance(model, dict) else None
    finetune = study.workload.get("finetune", "full")
    return (family, finetune) == (workload.model.family, workload.finetune)


def _best(contents: StudyContents) -> EarlierBest | None:
    verdict = contents.verdict
    if verdict is None or verdict.verdict not in ("faster", "tie") or verdict.best_trial is None:
        return None
    trial = contents.trial(verdict.best_trial)
    if trial is None:
        return None
    set_values = {name: v for name, v in trial.header.config.items() if v is not None}
    return EarlierBest(study=contents.study.name, backend=trial.header.backend, values=set_values)
