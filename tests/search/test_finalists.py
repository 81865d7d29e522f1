"""Which configurations are launched again, and what their launches decide."""

from __future__ import annotations

import itertools

import pytest
from scripted import GIB, SPACE, Act, Bench, Script, by_micro_batch

from autotune.contract.plan import Plan

ONE_KNOB = """
version: 1
backend: ddp
workload: {model: qwen3-tiny, global_batch: 16, data: {lengths: ultrachat-like, max_length: 64}}
topology: {processes: 2}
baseline: {bucket_cap_mb: 1}
params:
  bucket_cap_mb: {choices: [1, 2, 4, 8, 16]}
"""


def value(plan: Plan) -> int:
    return int(plan.config["ddp.bucket_cap_mb"])


def search(bench: Bench, script: Script, *, finalists: int = 1, **options):
    space = f"{ONE_KNOB}search: {{finalists: {finalists}}}\n"
    return bench.search(script, space=space, trials=5, anchors=False, **options)


def knob(result, number: int | None) -> int:
    trial = result.contents.trial(number)
    return int(trial.header.config["ddp.bucket_cap_mb"])


def jitter(again: itertools.count) -> float:
    """A share that differs from launch to launch, the same in every test run."""
    return 1 + 0.002 * ((next(again) * 7) % 5 - 2) / 2


def test_a_lucky_launch_of_the_baseline_does_not_hide_a_gain(bench: Bench) -> None:
    """The baseline's first launch is the fastest of all, although 4 is 5 % faster in truth."""
    again = itertools.count()

    def script(plan: Plan) -> Act:
        if plan.purpose == "trial" and value(plan) == 1:
            return Act(s_per_it=0.094)
        return Act(s_per_it={4: 0.095}.get(value(plan), 0.100) * jitter(again))

    result = search(bench, script)
    assert result.verdict.verdict == "faster"
    assert knob(result, result.verdict.best_trial) == 4
    assert result.verdict.low is not None
    assert 1.0 < result.verdict.low < 0.100 / 0.095 < (result.verdict.high or 0)


def test_a_challenger_that_is_really_slower_is_given_up_early(bench: Bench) -> None:
    """It is close enough to be tried, and no more rounds are spent than it takes to see."""
    again = itertools.count()

    def script(plan: Plan) -> Act:
        return Act(s_per_it=(0.100 if value(plan) == 1 else 0.120) * jitter(again))

    result = search(bench, script)
    assert result.verdict.verdict == "keep_baseline"
    assert result.verdict.high is not None
    assert result.verdict.high < 1
    assert 4 <= len(result.contents.remeasurements) < 10


def test_three_finalists_take_turns_with_the_baseline(bench: Bench) -> None:
    again = itertools.count()

    def script(plan: Plan) -> Act:
        times = {2: 0.0905, 4: 0.0900, 8: 0.0910}
        return Act(s_per_it=times.get(value(plan), 0.100) * jitter(again))

    result = search(bench, script, finalists=3)
    rounds = [(a.header.role, a.header.round) for a in result.contents.remeasurements]
    one = [("baseline",), ("finalist",), ("finalist",), ("finalist",)]
    assert rounds == [(role, index) for index in range(5) for (role,) in one]
    assert len(result.verdict.compared) == 3
    assert all(c.low is not None and c.low > 1 and c.rounds == 5 for c in result.verdict.compared)
    assert result.verdict.verdict == "faster"


@pytest.mark.parametrize(("light", "winner"), [(8, 8), (None, 2)])
def test_finalists_that_cannot_be_told_apart_go_to_less_memory_then_to_the_baseline(
    bench: Bench, light: int | None, winner: int
) -> None:
    """2, 4 and 8 are equally fast; 2 lies nearest the baseline's 1."""
    again = itertools.count()

    def script(plan: Plan) -> Act:
        seconds = 0.09 if value(plan) in (2, 4, 8) else 0.1
        peak = GIB // 2 if value(plan) == light else GIB
        return Act(s_per_it=seconds * jitter(again), peak_bytes=peak)

    result = search(bench, script, finalists=3)
    assert result.verdict.verdict == "faster"
    assert knob(result, result.verdict.best_trial) == winner


def test_a_leader_beyond_the_noise_needs_no_further_finalists(bench: Bench) -> None:
    result = search(bench, lambda plan: Act(s_per_it=0.1 / value(plan)), finalists=3)
    assert {a.header.trial for a in result.contents.remeasurements} == {
        0,
        result.verdict.best_trial,
    }
    assert knob(result, result.verdict.best_trial) == 16


def test_one_of_several_finalists_that_fails_leaves_the_others(bench: Bench) -> None:
    def script(plan: Plan) -> Act:
        if plan.purpose == "remeasurement" and value(plan) == 4:
            return Act(error="boom")
        return Act(s_per_it={4: 0.0899, 8: 0.09}.get(value(plan), 0.1))

    result = search(bench, script, finalists=2)
    assert knob(result, result.verdict.best_trial) == 8
    assert "is out" in bench.messages()


def test_a_gain_that_was_proved_is_not_forgotten_when_a_later_finalist_fails_to_show_one(
    bench: Bench,
) -> None:
    """More trials find one that looks faster by luck; the earlier winner stays."""
    lucky: set[str] = set()

    def script(plan: Plan) -> Act:
        if plan.purpose == "trial" and plan.number >= 12 and plan.key not in lucky:
            lucky.add(plan.key)
            return Act(s_per_it=0.5)
        return by_micro_batch(plan) if plan.key not in lucky else Act(s_per_it=2.4)

    first = bench.search(script, trials=12)
    assert first.verdict.verdict == "faster"
    second = bench.search(script, trials=13)
    assert second.verdict.verdict == "faster"
    assert second.verdict.best_trial == first.verdict.best_trial
    assert {c.trial for c in second.verdict.compared} > {first.verdict.best_trial}


def test_a_verdict_over_fewer_finalists_than_are_asked_for_does_not_stand(bench: Bench) -> None:
    def script(plan: Plan) -> Act:
        return Act(s_per_it={4: 0.0899, 8: 0.09}.get(value(plan), 0.1))

    first = search(bench, script, finalists=1)
    assert len(first.verdict.compared) == 1
    more = search(bench, script, finalists=2)
    assert len(more.verdict.compared) == 2
    assert search(bench, script, finalists=1).verdict == more.verdict
    assert bench.launcher is not None
    assert bench.launcher.plans == []


@pytest.mark.parametrize("wrong", ["0", "4", "two", "1.5"])
def test_finalists_are_one_to_three(bench: Bench, wrong: str) -> None:
    from autotune.errors import SpaceError

    with pytest.raises(SpaceError, match=r"search\.finalists"):
        bench.search(by_micro_batch, space=f"{SPACE}search: {{finalists: {wrong}}}\n")
