"""Where an exported file comes from: the companion ``FILE.provenance.json``."""

from __future__ import annotations

import datetime
import hashlib
from typing import Any, Final

import autotune
from autotune.exporters.base import ExportRequest, ExportResult

SUFFIX: Final = ".provenance.json"


def sha256(text: str) -> str:
    """Hash of a file with this text."""
    return hashlib.sha256(text.encode()).hexdigest()


def provenance(
    request: ExportRequest, result: ExportResult, *, format_name: str, at: float
) -> dict[str, Any]:
    """Return the companion's content.

    Args:
        request: What was exported.
        result: What the exporter made of it.
        format_name: Name of the target in the registry.
        at: ``time.time()`` of the export.
    """
    best, study = request.report["best"], request.contents.study
    measured = request.outcome.measurement
    date = datetime.datetime.fromtimestamp(at, tz=datetime.UTC)
    return {
        "schema_version": 1,
        "written_by": f"autotune {autotune.__version__}",
        "date": date.isoformat(timespec="seconds"),
        "format": format_name,
        "study": study.name,
        "trial": request.trial,
        "origin": best["origin"],
        "backend": request.plan.backend,
        "space_fingerprint": study.space_fingerprint,
        "plan_digest": request.outcome.plan_digest,
        "verdict": best["verdict"],
        "speedup": best["speedup"],
        "s_per_it": best["s_per_it"],
        "baseline_s_per_it": request.report["baseline"]["s_per_it"],
        "numerics": best["numerics"],
        "params": best["params"],
        "config": request.plan.config,
        "implementations": measured.implementations if measured is not None else {},
        "unverified": request.plan.unverified,
        "topology": request.report["topology"],
        "environment": study.environment,
        "replayed_from": study.environment.get("replayed_from"),
        "files": {name: {"sha256": sha256(text)} for name, text in result.files.items()},
        "equals_measured": not result.losses,
        "adaptations": list(result.adaptations),
        "losses": list(result.losses),
        "statement": _statement(request, result),
        "checked_with": result.checked_with,
        "notes": list(result.notes),
    }


def _statement(request: ExportRequest, result: ExportResult) -> str:
    same = f"the settings are those that trial {request.trial} was measured with"
    if result.losses:
        return f"{same}, but these files cannot say: {'; '.join(result.losses)}"
    return same
