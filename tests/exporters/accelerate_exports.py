"""Exports of one recorded trial to accelerate."""

from __future__ import annotations

import dataclasses
from typing import Any

from study_factory import CONFIG, StudyBuilder, make_plan, measured

from autotune.contract.plan import Precision
from autotune.exporters import accelerate, choosing
from autotune.exporters.base import ExportResult
from autotune.report.document import build
from autotune.store.importer import read_study

WORK = {name: value for name, value in CONFIG.items() if name.startswith("workload.")}
BF16 = Precision(compute="bf16", master="fp32", accumulate="fp32", reduce="fp32")


def exported(
    study: StudyBuilder, backend: str, file: str = "acc.yaml", **changes: Any
) -> ExportResult:
    """Record one trial of ``backend`` and export it; ``changes`` go to the plan."""
    config = {**WORK, **changes.pop("config", {})}
    options = {key: changes.pop(key) for key in ("folder", "target_version") if key in changes}
    read_back = changes.pop("read_back", {})
    # Faster than all before it, so that it is what is exported.
    fastest = 0.5 ** study.recorder.next_number("trial")
    study.trial(measured(fastest, read_back=read_back), backend=backend, config=config)
    contents = read_study(study.folder)
    request = choosing.choose(contents, build(contents), file, **options)
    plan = make_plan(backend=backend)
    work = changes.pop("workload", plan.workload)
    workload = dataclasses.replace(work, precision=changes.pop("precision", BF16))
    plan = dataclasses.replace(request.plan, workload=workload, config=config, **changes)
    return accelerate.export(dataclasses.replace(request, plan=plan))
