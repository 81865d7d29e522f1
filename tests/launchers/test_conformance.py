"""What every registered launcher does: a new one is tested here without new test code.

One that cannot start without an argument has it in ``ARGUMENTS``.
"""

from __future__ import annotations

import dataclasses
import time

import pytest
from launching import WAIT_S
from recorded import GRID, TABLE

from autotune import registry
from autotune.contract.folder import StudyFolder
from autotune.contract.plan import Plan, Reference
from autotune.launchers.base import Order
from autotune.search.judging import judge
from autotune.search.preflight import Prepared, prepare
from autotune.search.request import SearchRequest

ARGUMENTS = {"replay": str(TABLE)}


def open_kind(name: str):
    return registry.load("launchers", name)(ARGUMENTS.get(name))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("prepared")
    request = SearchRequest(space=str(GRID), runs=folder / "runs", anchors=False)
    return prepare(request, staging=folder)


@pytest.fixture(scope="module", params=registry.names("launchers"))
def opened(request, prepared: Prepared, tmp_path_factory: pytest.TempPathFactory):
    study = StudyFolder(tmp_path_factory.mktemp("runs") / "study")
    kind = open_kind(request.param)
    order = Order(
        study=study,
        topology=prepared.topology,
        backends=prepared.space.backends,
        is_command=False,
        seed=0,
    )
    launcher = kind.launcher(order)
    said = launcher.start()
    assert said is None or said.strip()
    yield launcher, study
    launcher.close()
    launcher.close()


def make_plan(prepared: Prepared, number: int) -> Plan:
    """A plan of the baseline, timed for one cycle: what is measured is not the subject."""
    plan = prepared.planner.plan(
        prepared.space.baseline_config(),
        number=number,
        attempt=0,
        purpose="trial",
        reference=Reference(),
        racing=None,
    )
    short = dataclasses.replace(plan.measuring, warmup_max_cycles=1, window_iterations=1)
    return dataclasses.replace(plan, measuring=short)


def submit(opened, prepared: Prepared, number: int):
    launcher, study = opened
    folder = study.attempt("trial", number, 0)
    plan = make_plan(prepared, number)
    folder.write_plan(plan)
    return launcher.submit(folder, plan), folder, plan


@pytest.mark.parametrize("name", registry.names("launchers"))
def test_a_kind_says_where_it_runs_and_refuses_nothing_that_it_can_do(
    name: str, prepared: Prepared
) -> None:
    kind = open_kind(name)
    again = registry.load("launchers", name)(kind.argument)
    assert again.argument == kind.argument
    assert kind.refused_work(prepared.workload) is None
    config = prepared.space.baseline_config()
    assert kind.refused_config(config.key, config.backend, config.values, ()) is None
    if kind.site is not None:
        assert kind.site.topology.processes >= 1
        assert {"python", "packages", "cpu", "gpus", "device"} <= set(kind.site.environment)


def test_a_trial_leaves_the_records_of_all_ranks_and_is_judged(opened, prepared: Prepared) -> None:
    launcher, _ = opened
    begun = time.time()
    job, folder, plan = submit(opened, prepared, 0)
    status = launcher.poll(job, timeout_s=WAIT_S)
    assert status.state == "ended"
    assert status.stopped_for is None
    assert begun <= status.submitted_at <= time.time()
    assert {one.rank: (one.exit_code, one.signal) for one in status.exits} == dict.fromkeys(
        range(plan.topology.processes), (0, None)
    )
    for rank in range(plan.topology.processes):
        record = folder.read_rank(rank)
        assert record is not None
        assert record.plan_digest == plan.digest
    outcome = judge(plan, folder, status)
    assert outcome.state == "complete", outcome.failure
    assert 0 < outcome.overhead_s < outcome.wall_s == status.wall_s


def test_a_job_that_has_ended_stays_as_it_was(opened, prepared: Prepared) -> None:
    launcher, _ = opened
    job, _, _ = submit(opened, prepared, 1)
    first = launcher.poll(job, timeout_s=WAIT_S)
    launcher.cancel(job)
    assert launcher.poll(job) == first


def test_jobs_have_names_of_their_own(opened, prepared: Prepared) -> None:
    launcher, _ = opened
    jobs = [submit(opened, prepared, number)[0] for number in (2, 3)]
    assert len(set(jobs)) == 2
    for job in jobs:
        assert launcher.poll(job, timeout_s=WAIT_S).state == "ended"
