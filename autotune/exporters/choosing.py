"""Finds what may be exported: the best configuration, with the plan that really ran."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.contract import jsonfile
from autotune.contract.folder import AttemptFolder
from autotune.contract.outcome import Outcome
from autotune.contract.plan import Plan
from autotune.errors import NothingToExportError, RecordError
from autotune.exporters.base import ExportRequest
from autotune.store.records import StudyContents, TrialRecord


def choose(
    contents: StudyContents,
    report: Mapping[str, Any],
    file_name: str,
    *,
    folder: Path | None = None,
    target_version: str | None = None,
) -> ExportRequest:
    """Return the request to export the report's best configuration.

    Args:
        contents: All that is known of the study.
        report: Its report document.
        file_name: Name of the main file, without a folder.
        folder: Where the files will lie; ``None`` if they are printed.
        target_version: Version of the target's package to write for, if not the installed one.

    Raises:
        NothingToExportError: Nothing valid was measured, or its plan is gone; says why.
        RecordError: The plan is not the one that was measured.
    """
    number = report["best"]["trial"]
    trial = None if number is None else contents.trial(number)
    if trial is None:
        raise _nothing(contents, report)
    launch, outcome = _measured_launch(contents, trial)
    plan = _read_plan(launch)
    # Of the file as it lies there: a later version may read more into it than this one wrote.
    if jsonfile.digest(jsonfile.read_json(launch.plan_file)) != outcome.plan_digest:
        raise RecordError(
            f"{launch.plan_file} is not the plan that trial {trial.number} ran",
            hint="restore the trial's folder, or search again",
        )
    _same_values(trial, plan, launch)
    return ExportRequest(
        contents=contents,
        report=report,
        trial=trial.number,
        plan=plan,
        outcome=outcome,
        file_name=file_name,
        folder=folder,
        target_version=target_version,
    )


def _nothing(contents: StudyContents, report: Mapping[str, Any]) -> NothingToExportError:
    name = contents.study.name
    failed = {kind: n for kind, n in report["counts"].items() if kind != "measured"}
    if not contents.trials:
        why = "it has no trials yet"
    elif failed:
        causes = ", ".join(f"{count} × {kind}" for kind, count in failed.items())
        why = f"none of its {sum(failed.values())} failed trials gave a valid time ({causes})"
        if report["counts"]["measured"]:
            why = f"no configuration was found valid ({causes})"
    else:
        why = "no trial has ended with a valid time"
    return NothingToExportError(
        f"study {name!r} has nothing to export: {why}",
        hint=f"'autotune report {name}' shows the causes and what to try next"
        if failed
        else f"run 'autotune search --study {name}' to go on",
    )


def _measured_launch(contents: StudyContents, trial: TrialRecord) -> tuple[AttemptFolder, Outcome]:
    for attempt in reversed(trial.attempts):
        if attempt.outcome is not None and attempt.outcome.measurement is not None:
            return contents.folder.attempt("trial", trial.number, attempt.number), attempt.outcome
    # Only re-measured: the baseline failed once and was measured later.
    for again in contents.remeasurements:
        if again.header.trial == trial.number and again.measurement is not None:
            assert again.outcome is not None
            number = again.attempts[-1].number
            return contents.folder.attempt("remeasurement", again.number, number), again.outcome
    raise AssertionError(f"trial {trial.number} is the best and was never measured")


def _read_plan(folder: AttemptFolder) -> Plan:
    try:
        return folder.read_plan()
    except FileNotFoundError:
        raise NothingToExportError(
            f"the plan of the best trial is gone: there is no {folder.plan_file}",
            hint="give the folder that holds the study with --runs",
        ) from None


def _same_values(trial: TrialRecord, plan: Plan, folder: AttemptFolder) -> None:
    recorded = trial.header.config
    for name, value in plan.config.items():
        if name in recorded and recorded[name] != value:
            raise RecordError(
                f"{folder.plan_file}: {name} is {value!r}, but trial {trial.number} "
                f"was recorded with {recorded[name]!r}"
            )
