"""Trials that a benchmark launches itself, on the launcher that a search would use."""

from __future__ import annotations

from pathlib import Path

from autotune.contract.folder import AttemptFolder
from autotune.contract.plan import Plan
from autotune.launchers.base import JobStatus, Launcher, Order
from autotune.search.preflight import Prepared


def launcher_of(prepared: Prepared) -> Launcher:
    """The launcher of a prepared search; the caller starts and closes it."""
    prepared.folder.path.mkdir(parents=True, exist_ok=True)
    order = Order(
        study=prepared.folder,
        topology=prepared.topology,
        backends=prepared.space.backends,
        is_command=False,
        modules=(),
        seed=prepared.space.search.seed,
    )
    return prepared.where.kind.launcher(order)


def launched(launcher: Launcher, plan: Plan, path: Path) -> tuple[JobStatus, AttemptFolder]:
    """Launch ``plan`` in the new folder ``path`` and wait until all its processes are gone."""
    path.mkdir(parents=True)
    folder = AttemptFolder(path)
    folder.write_plan(plan)
    job = launcher.submit(folder, plan)
    while (status := launcher.poll(job, timeout_s=1.0)).state != "ended":
        pass
    return status, folder
