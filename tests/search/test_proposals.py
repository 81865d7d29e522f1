from __future__ import annotations

import dataclasses
import warnings

import optuna
import pytest
from scripted import SPACE

from autotune.contract.plan import Topology
from autotune.search.observations import Observation, told
from autotune.search.proposals import (
    Exhausted,
    Proposal,
    list_assignments,
    propose,
    sampler_name,
    space_size,
)
from autotune.space.loader import parse_space
from autotune.space.search_space import SearchSpace

CONDITIONAL = SPACE.replace(
    "  reduce_bucket_size: {type: int, low: 1e5, high: 5e8, log: true}",
    "  overlap_comm: {choices: [true, false]}\n"
    "  stage3_prefetch_bucket_size: {type: int, low: 1e5, high: 1e8, log: true, also: [0],\n"
    "    when: overlap_comm == true}",
)


def space_of(text: str) -> SearchSpace:
    space = parse_space(text, file="space.yaml")
    return space.on(Topology(processes=2, device="cpu", devices_per_node=2))


def search(space: SearchSpace, count: int, value) -> list[Proposal]:
    """``count`` proposals, each told with ``value`` of its assignment (``None``: infeasible)."""
    taken: set[str] = set()
    observations: list[Observation] = []
    found: list[Proposal] = []
    for number in range(count):
        one = propose(
            space,
            observations,
            reject=lambda config: "known" if config.key in taken else None,
            avoid=lambda config: False,
            number=number,
        )
        if isinstance(one, Exhausted):
            break
        taken.add(one.config.key)
        observations.append(Observation(assignment=one.assignment, s_per_it=value(one.assignment)))
        found.append(one)
    return found


@pytest.mark.parametrize("sampler", ["auto", "gp", "random"])
def test_inactive_parameters_are_never_drawn(sampler: str) -> None:
    """BUG-017: neither in the assignment nor as a drawn value in the configuration; no flood."""
    space = space_of(CONDITIONAL)
    space = dataclasses.replace(space, search=dataclasses.replace(space.search, sampler=sampler))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = search(space, 7 if sampler == "gp" else 20, lambda a: 1.0 / a["micro_batch"])
    assert {one.assignment["overlap_comm"] for one in found} == {True, False}
    for one in found:
        active = one.assignment["overlap_comm"]
        assert ("stage3_prefetch_bucket_size" in one.assignment) is active
        if not active:
            assert one.config.values["zero3.stage3_prefetch_bucket_size"] == 50_000_000


@pytest.mark.parametrize("sampler", ["auto", "gp"])
def test_huge_grids_are_not_listed(sampler: str) -> None:
    """Ten thousand million whole numbers, a million million decimal steps."""
    text = SPACE.replace(
        "  reduce_bucket_size: {type: int, low: 1e5, high: 5e8, log: true}",
        "  stage3_max_live_parameters: {type: int, low: 1e6, high: 1e10, log: true}\n"
        "  stage3_max_reuse_distance: {type: int, low: 0, high: 1e10, step: 1000}",
    )
    space = space_of(text + f"search: {{sampler: {sampler}}}\n")
    found = search(space, 6, lambda a: a["stage3_max_live_parameters"] / 1e6)
    assert found[-1].model_based
    for one in found:
        assert 10**6 <= one.assignment["stage3_max_live_parameters"] <= 10**10
        assert type(one.assignment["stage3_max_live_parameters"]) is int
        assert one.assignment["stage3_max_reuse_distance"] % 1000 == 0


def test_types_survive_past_the_start_up_trials() -> None:
    """BUG-009: fifteen trials, and every value has the type that the space gives it."""
    found = search(space_of(CONDITIONAL), 15, lambda a: 1.0 / a["micro_batch"])
    for one in found:
        assert type(one.assignment["micro_batch"]) is int
        assert type(one.assignment["overlap_comm"]) is bool
        assert type(one.assignment.get("stage3_prefetch_bucket_size", 0)) is int
    assert any(one.model_based for one in found)
    assert len({one.config.key for one in found}) == len(found)


def test_proposals_are_a_function_of_the_records() -> None:
    space = space_of(SPACE)
    first = search(space, 8, lambda a: 1.0 / a["micro_batch"])
    again = search(space, 8, lambda a: 1.0 / a["micro_batch"])
    assert [a.assignment for a in first] == [b.assignment for b in again]


def test_sixteenth_trial_of_a_resumed_search_is_model_based() -> None:
    """BUG-023."""
    space = space_of(SPACE)
    observations = [
        Observation(assignment=one.assignment, s_per_it=1.0 / one.assignment["micro_batch"])
        for one in search(space, 15, lambda a: 1.0 / a["micro_batch"])
    ]
    proposal = propose(space, observations, reject=lambda c: None, avoid=lambda c: False, number=15)
    assert isinstance(proposal, Proposal)
    assert proposal.model_based


def test_failures_are_told_with_the_worst_value_and_a_constraint() -> None:
    rows = told(
        [
            Observation(assignment={"a": 1}, s_per_it=0.5),
            Observation(assignment={"a": 2}, s_per_it=None),
            Observation(assignment={"a": 3}, s_per_it=0.8),
        ]
    )
    assert [row.value for row in rows] == [0.5, 0.8, 0.8]
    assert [row.constraint > 0 for row in rows] == [False, True, False]


def test_constraints_and_duplicates_are_rejected_without_a_launch() -> None:
    text = SPACE + "constraints: [reduce_bucket_size <= 200000]\n"
    found = search(space_of(text), 10, lambda a: 1.0)
    assert len(found) == 10
    assert all(one.assignment["reduce_bucket_size"] <= 200_000 for one in found)


def test_small_space_is_exhausted() -> None:
    text = SPACE.replace("{type: int, low: 1e5, high: 5e8, log: true}", "{choices: [1, 2]}")
    space = space_of(text)
    assert space_size(space) == 8
    assert len(list(list_assignments(space))) == 8
    assert len(search(space, 20, lambda a: 1.0)) == 8


def test_optuna_stays_silent(capfd: pytest.CaptureFixture[str]) -> None:
    search(space_of(CONDITIONAL), 12, lambda a: None if a["micro_batch"] == 8 else 1.0)
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
    assert optuna.logging.get_verbosity() == optuna.logging.ERROR


def test_sampler_names() -> None:
    assert sampler_name(space_of(SPACE)) == "tpe"
