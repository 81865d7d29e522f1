"""The loop over a scripted launcher: real space, store, Optuna; only the processes are missing."""

from __future__ import annotations

import os
import signal

import pytest
from scripted import CHECKS, SPACE, Act, Bench, by_micro_batch

from autotune.contract.folder import StudyFolder
from autotune.contract.plan import CheckPoint, Plan
from autotune.errors import InterruptedSearch, NothingFeasibleError
from autotune.search import history, launching
from autotune.search.events import SearchStarted
from autotune.search.interrupts import Interrupts
from autotune.store.importer import read_study

BUCKETS = "  reduce_bucket_size: {type: int, low: 1e5, high: 5e8, log: true}\n"


def test_equal_work_makes_the_largest_micro_batch_win(bench: Bench) -> None:
    """BUG-038: seconds per iteration under one global batch, not per micro-step."""
    result = bench.search(by_micro_batch, trials=12)
    best = result.contents.trial(result.verdict.best_trial or 0)
    assert best is not None
    assert best.header.params["micro_batch"] == 8
    assert result.verdict.verdict == "faster"
    assert result.verdict.ratio == pytest.approx(0.3 * 8 / 1.0)


def test_trials_are_counted_and_keys_never_repeat(bench: Bench) -> None:
    result = bench.search(by_micro_batch, trials=9)
    keys = [trial.header.key for trial in result.contents.trials]
    assert len(keys) == len(set(keys)) == 9
    assert history.counted(result.contents) == 9
    assert result.contents.trials[0].header.origin == "baseline"
    assert result.contents.trials[1].header.origin.startswith("anchor:")


def test_confirmation_alternates_baseline_and_finalist_five_times(bench: Bench) -> None:
    result = bench.search(by_micro_batch, trials=6)
    assert bench.launcher is not None
    roles = [
        again.header.role
        for again in result.contents.remeasurements
        if again.header.round is not None
    ]
    assert roles == ["baseline", "finalist"] * 5
    assert [plan.racing for plan in _measurings(bench)] == [None] * 10


def _measurings(bench: Bench) -> list:
    assert bench.launcher is not None
    return [p.measuring for p in bench.launcher.plans if p.purpose == "remeasurement"]


def test_best_is_baseline_is_said_without_a_launch(bench: Bench) -> None:
    def slower(plan: Plan) -> Act:
        return Act(s_per_it=0.1 if plan.number == 0 else 0.2)

    result = bench.search(slower, trials=4)
    assert result.verdict.verdict == "keep_baseline"
    assert result.verdict.best_trial == 0
    assert not result.contents.remeasurements


def test_no_gain_beyond_noise_keeps_the_baseline(bench: Bench) -> None:
    times = iter([0.100, 0.101, 0.099, 0.102, 0.098, 0.1005, 0.0995] * 4)
    result = bench.search(lambda plan: Act(s_per_it=next(times)), trials=5)
    assert result.verdict.verdict == "keep_baseline"
    assert result.verdict.low is None or result.verdict.low <= 1.0


def test_same_command_again_launches_nothing(bench: Bench) -> None:
    first = bench.search(by_micro_batch, trials=5)
    second = bench.search(by_micro_batch, trials=5)
    assert bench.launcher is not None
    assert bench.launcher.plans == []
    assert bench.launcher.started == 0
    assert second.verdict == first.verdict


def test_baseline_failure_stops_at_once_with_its_reason(bench: Bench) -> None:
    """BUG-018, BUG-071: said before the budget is spent."""
    with pytest.raises(NothingFeasibleError, match="no module named deepspeed") as caught:
        bench.search(
            lambda plan: Act(
                error="no module named deepspeed", error_type="builtins.ModuleNotFoundError"
            ),
            trials=40,
        )
    assert caught.value.exit_code == 1
    assert caught.value.hint is not None
    assert "1 × crash" in caught.value.hint
    assert "rank-0.log" in caught.value.hint
    assert bench.launcher is not None
    assert len(bench.launcher.plans) == 2  # a crash is launched once more
    contents = read_study(StudyFolder.of(bench.runs, "s"))
    assert contents.verdict is not None
    assert contents.verdict.verdict == "none_feasible"


def test_baseline_outside_the_ranges_runs_first_and_is_not_told(bench: Bench) -> None:
    """BUG-018: fixed values hold everywhere, the baseline runs although it lies outside."""
    space = SPACE.replace("high: 5e8", "high: 2e8").replace(
        "baseline: {", "fixed: {overlap_comm: false}\nbaseline: {reduce_bucket_size: 5e8, "
    )
    result = bench.search(by_micro_batch, space=space, trials=7)
    assert bench.launcher is not None
    plans = bench.launcher.plans
    assert plans[0].config["zero3.reduce_bucket_size"] == 500_000_000
    assert all(plan.config["zero3.overlap_comm"] is False for plan in plans)
    others = bench.launcher.trials()[1:]
    assert all(plan.config["zero3.reduce_bucket_size"] <= 200_000_000 for plan in others)
    assert result.contents.trials[0].header.inside_space is False


@pytest.mark.parametrize(("others", "most"), [(False, 6), (True, 8)])
def test_out_of_memory_teaches_and_known_failures_cost_nothing(
    bench: Bench, others: bool, most: int
) -> None:
    """BUG-011: at most a few of the launches land in the failing region; 7 is the best."""
    # Only divisors of the global batch can cut by rows; a token budget has no such rule.
    space = SPACE.replace("micro_batch: {choices: [1, 2, 4, 8]}", TOKENS)
    space = space.replace("baseline: {micro_batch: 1}", "baseline: {max_tokens: 64}")
    if not others:
        space = space.replace(BUCKETS, "")

    def memory(plan: Plan) -> Act:
        tokens = plan.config["workload.max_tokens"]
        if tokens >= 8 * 64:
            return Act(error="CUDA out of memory", error_type="torch.OutOfMemoryError")
        return Act(s_per_it=1.0 / tokens)

    result = bench.search(memory, space=space, trials=40)
    failed = [t for t in result.contents.trials if t.state == "failed"]
    assert 1 <= len(failed) <= most
    best = result.contents.trial(result.verdict.best_trial or 0)
    assert best is not None
    assert best.header.params["max_tokens"] == 7 * 64
    assert history.counted(result.contents) <= 40


def test_a_single_micro_step_may_fit_where_several_smaller_ones_do_not(bench: Bench) -> None:
    """FSDP2 holds whole gradients between micro-steps, and in none where there is only one."""

    def memory(plan: Plan) -> Act:
        rows = plan.config["workload.micro_batch"]
        if rows in (2, 4):
            return Act(error="CUDA out of memory", error_type="torch.OutOfMemoryError")
        return Act(s_per_it=1.0 / rows)

    space = SPACE.replace("zero3", "fsdp2").replace(BUCKETS, "")
    small = space.replace("[1, 2, 4, 8]", "[1, 2]")
    bench.search(memory, space=small, trials=2, anchors=False)
    result = bench.search(memory, space=space, trials=8, anchors=False)
    launched = [t.header.config["workload.micro_batch"] for t in result.contents.trials]
    assert launched == [1, 2, 8]
    assert result.verdict.best_trial == 2


TOKENS = "max_tokens: {type: int, low: 64, high: 1024, step: 64}"


def test_a_value_that_is_not_in_effect_fails_the_first_trial(bench: Bench) -> None:
    """BUG-008: each tuned value is checked against what the engine reports, after trial 0."""
    with pytest.raises(NothingFeasibleError, match="not_in_effect.*reduce_bucket_size"):
        bench.search(lambda plan: Act(actual={"zero3.reduce_bucket_size": 7}), trials=5)
    assert bench.launcher is not None
    assert "zero3.reduce_bucket_size" in bench.launcher.plans[0].verify
    assert len(bench.launcher.plans) == 1


def test_wrong_numbers_fail_and_never_win(bench: Bench) -> None:
    def wrong(plan: Plan) -> Act:
        if plan.config["workload.micro_batch"] == 8:
            scaled = tuple(CheckPoint(loss=c.loss, grad_norm=4 * c.grad_norm) for c in CHECKS)
            return Act(s_per_it=0.01, checks=scaled)
        return by_micro_batch(plan)

    result = bench.search(wrong, trials=12)
    failed = [t for t in result.contents.trials if t.header.params["micro_batch"] == 8]
    assert failed
    assert {history.failure_of(t).kind for t in failed} == {"numerics"}  # type: ignore[union-attr]
    best = result.contents.trial(result.verdict.best_trial or 0)
    assert best is not None
    assert best.header.params["micro_batch"] == 4


@pytest.mark.parametrize(
    ("act", "said", "launches"),
    [
        (Act(error="cannot import name 'x'"), "3 trials crashed alike", 1 + 3 * 2),
        (
            Act(error="the engine knows no such key", kind="incompatible", phase="build"),
            "3 trials failed with incompatible, alike",
            1 + 3,
        ),
    ],
)
def test_three_identical_failures_before_any_success_stop_the_search(
    bench: Bench, act: Act, said: str, launches: int
) -> None:
    """BUG-071: what says the same each time is not repeated to the end of the budget."""
    with pytest.raises(NothingFeasibleError, match=said) as caught:
        bench.search(lambda plan: act if plan.number else Act(), trials=40)
    assert caught.value.exit_code == 1
    assert caught.value.hint is not None
    assert "next: " in caught.value.hint
    assert bench.launcher is not None
    assert len(bench.launcher.plans) == launches


def test_identical_failures_are_counted_over_restarts(bench: Bench) -> None:
    act = Act(error="the engine knows no such key", kind="incompatible", phase="build")

    def script(plan: Plan) -> Act:
        return act if plan.number else Act()

    bench.search(script, trials=3)
    with pytest.raises(NothingFeasibleError, match="3 trials failed"):
        bench.search(script, trials=40)
    assert bench.launcher is not None
    assert len(bench.launcher.plans) == 1


def test_failures_after_a_success_or_in_different_words_do_not_stop_it(bench: Bench) -> None:
    def script(plan: Plan) -> Act:
        if plan.number < 2:
            return Act()
        return Act(error="the engine knows no such key", kind="incompatible", phase="build")

    assert history.counted(bench.search(script, trials=8).contents) == 8

    def other(plan: Plan) -> Act:
        if plan.number == 0:
            return Act()
        return Act(error=f"key {plan.number} is unknown", kind="incompatible", phase="build")

    again = Bench(bench.runs.parent / "again")
    again.runs.parent.mkdir()
    assert history.counted(again.search(other, trials=6).contents) == 6


def test_crashes_alike_after_a_success_stop_the_search_too(bench: Bench) -> None:
    def crash(plan: Plan) -> Act:
        return Act() if plan.number < 2 else Act(error="cannot import name 'x'")

    with pytest.raises(NothingFeasibleError, match="5 trials crashed alike") as caught:
        bench.search(crash, trials=40)
    assert caught.value.hint is not None
    assert "5 × crash" in caught.value.hint


def test_a_trial_cut_short_by_a_limit_is_launched_again_when_the_limit_is_raised(
    bench: Bench,
) -> None:
    """BUG-040: exceeding a limit is its own outcome, is no time, and is not for good."""

    def slow(plan: Plan) -> Act:
        if plan.number == 2 and plan.deadlines.total_s < 500:
            return Act(forever=False, signal=9, stopped_for="timeout", phase="check")
        return by_micro_batch(plan)

    first = bench.search(slow, trials=4).contents.trial(2)
    assert first is not None
    assert (first.state, history.failure_of(first).kind) == ("failed", "timeout")  # type: ignore[union-attr]
    assert first.measurement is None
    bench.search(slow, trials=4)
    assert bench.launcher is not None
    assert bench.launcher.plans == []
    longer = SPACE + "search: {max_trial_time: 10m}\n"
    result = bench.search(slow, space=longer, trials=4)
    assert bench.launcher is not None
    assert [plan.number for plan in bench.launcher.trials()] == [2]
    again = result.contents.trial(2)
    assert again is not None
    assert again.state == "complete"
    assert history.counted(result.contents) == len(result.contents.trials) == 4


def test_infra_is_retried_and_not_counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "BACK_OFF_S", 0.1)
    failures = iter(["Connection reset by peer", "Connection reset by peer"])

    def flaky(plan: Plan) -> Act:
        if plan.number == 2 and (text := next(failures, None)) is not None:
            return Act(error=text, error_type="torch.distributed.DistNetworkError", phase="init")
        return by_micro_batch(plan)

    result = bench.search(flaky, trials=4)
    trial = result.contents.trial(2)
    assert trial is not None
    assert [a.outcome.state for a in trial.attempts if a.outcome] == [
        "failed",
        "failed",
        "complete",
    ]
    assert history.counted(result.contents) == 4


def test_a_fault_of_the_machine_takes_no_retry_from_a_crash(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "BACK_OFF_S", 0.0)
    faults = [Act(error="Connection reset by peer"), Act(error="boom")]

    def flaky(plan: Plan) -> Act:
        if plan.number == 1 and plan.attempt < 2:
            return faults[plan.attempt]
        return by_micro_batch(plan)

    result = bench.search(flaky, trials=3)
    trial = result.contents.trials[1]
    states = [attempt.outcome.state for attempt in trial.attempts if attempt.outcome]
    assert states == ["failed", "failed", "complete"]


def test_small_space_ends_the_search(bench: Bench) -> None:
    space = SPACE.replace(BUCKETS, "")
    result = bench.search(by_micro_batch, space=space, trials=40)
    assert {t.header.params["micro_batch"] for t in result.contents.trials} == {1, 2, 4, 8}
    assert "every configuration of the space" in bench.messages()


def test_interrupt_records_the_trial_and_the_same_command_goes_on(bench: Bench) -> None:
    """BUG-072: one trial in flight."""
    interrupts = Interrupts()

    def prepare(launcher) -> None:
        launcher.on_submit = lambda plan: interrupts.request() if plan.number == 3 else None

    def script(plan: Plan) -> Act:
        return Act(forever=True) if plan.number == 3 else by_micro_batch(plan)

    with pytest.raises(InterruptedSearch, match="after 3 of 6 trials; best so far") as caught:
        bench.search(script, interrupts=interrupts, prepare=prepare)
    assert caught.value.exit_code == 130
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("go on with: autotune search --space ")
    contents = read_study(StudyFolder.of(bench.runs, "s"))
    assert [t.state for t in contents.trials] == ["complete"] * 3 + ["interrupted"]

    result = bench.search(by_micro_batch)
    trial = result.contents.trial(3)
    assert trial is not None
    assert [a.number for a in trial.attempts] == [0, 1]
    assert trial.state == "complete"
    assert len(result.contents.trials) == history.counted(result.contents) == 6


def test_second_signal_ends_a_search_whose_launcher_does_not_answer(bench: Bench) -> None:
    """BUG-072: the entry is closed and the launcher told to end its processes all the same."""

    def ask() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def prepare(launcher) -> None:
        launcher.on_submit = lambda plan: ask() if plan.number == 1 else None
        launcher.cancel = lambda job: ask()

    def script(plan: Plan) -> Act:
        return Act(forever=plan.number == 1)

    with (
        Interrupts() as interrupts,
        pytest.raises(InterruptedSearch, match="after 1 of 6 trials") as caught,
    ):
        bench.search(script, interrupts=interrupts, prepare=prepare)
    assert caught.value.exit_code == 130
    assert bench.launcher is not None
    assert bench.launcher.closed == 1
    last = read_study(StudyFolder.of(bench.runs, "s")).trials[-1]
    assert last.outcome is not None
    assert last.outcome.state == "interrupted"


def test_an_extra_value_beside_the_range_is_drawn_and_launched(bench: Bench) -> None:
    """BUG-005: zero beside a logarithmic range reaches the plan as the integer 0."""
    space = SPACE.replace(
        BUCKETS,
        "  stage3_prefetch_bucket_size: {type: int, low: 1e5, high: 5e8, log: true, also: [0]}\n",
    )

    def script(plan: Plan) -> Act:
        return Act(s_per_it=1.0 if plan.config["zero3.stage3_prefetch_bucket_size"] else 0.5)

    result = bench.search(script, space=space, trials=24, anchors=False)
    best = result.contents.trial(result.verdict.best_trial or 0)
    assert best is not None
    assert bench.launcher is not None
    value = next(p for p in bench.launcher.plans if p.key == best.header.key).config[
        "zero3.stage3_prefetch_bucket_size"
    ]
    assert value == 0
    assert type(value) is type(best.header.params["stage3_prefetch_bucket_size"]) is int


def test_confirmation_resumes_in_the_middle(bench: Bench) -> None:
    interrupts = Interrupts()

    def prepare(launcher) -> None:
        def stop(plan: Plan) -> None:
            if plan.purpose == "remeasurement" and plan.number == 5:
                interrupts.request()

        launcher.on_submit = stop

    with pytest.raises(InterruptedSearch):
        bench.search(by_micro_batch, interrupts=interrupts, prepare=prepare)
    result = bench.search(by_micro_batch)
    assert bench.launcher is not None
    assert len(bench.launcher.plans) == 4
    assert result.verdict.verdict == "faster"


def test_interrupted_confirmation_keeps_its_finalist(bench: Bench) -> None:
    """A lucky launch of the baseline in a round does not end the confirmation."""
    interrupts = Interrupts()

    def prepare(launcher) -> None:
        def stop(plan: Plan) -> None:
            if plan.purpose == "remeasurement" and plan.number == 1:
                interrupts.request()

        launcher.on_submit = stop

    def script(plan: Plan) -> Act:
        if plan.purpose == "remeasurement" and plan.number == 0:
            return Act(s_per_it=0.001)
        return by_micro_batch(plan)

    with pytest.raises(InterruptedSearch):
        bench.search(script, interrupts=interrupts, prepare=prepare)
    result = bench.search(script)
    assert bench.launcher is not None
    assert len(bench.launcher.plans) == 8
    assert result.verdict.finalist is not None


def test_a_finalist_that_fails_again_gives_way_to_the_next(bench: Bench) -> None:
    failing: set[str] = set()

    def script(plan: Plan) -> Act:
        if plan.purpose == "remeasurement" and plan.config["workload.micro_batch"] == 8:
            failing.add(plan.key)
            if plan.key == min(failing):
                return Act(error="boom")
        return by_micro_batch(plan)

    result = bench.search(script, trials=12)
    assert result.verdict.verdict == "faster"
    assert result.contents.trial(result.verdict.best_trial or 0).header.key not in failing_first(
        result
    )
    assert "is out" in bench.messages()


def failing_first(result) -> set[str]:
    return {
        result.contents.trial(again.header.trial).header.key
        for again in result.contents.remeasurements
        if again.state == "failed"
    }


def test_noise_is_measured_every_eight_trials_and_used_for_racing(bench: Bench) -> None:
    result = bench.search(by_micro_batch, trials=17)
    noise = [a for a in result.contents.remeasurements if a.header.round is None]
    assert [(a.header.role, a.header.trial) for a in noise] == [("baseline", 0)] * 2
    assert bench.launcher is not None
    search = bench.launcher.plans[: 17 + len(noise)]
    again = [index for index, plan in enumerate(search) if plan.purpose == "remeasurement"]
    assert again == [8, 8 + 1 + 8]
    trials = bench.launcher.trials()
    assert trials[0].measuring.racing is None
    assert all(plan.measuring.racing is not None for plan in trials[1:])
    last = trials[-1].measuring.racing
    assert last is not None
    assert last.noise_share == pytest.approx(0.0, abs=1e-6)


def test_no_early_stop_sets_no_race(bench: Bench) -> None:
    bench.search(by_micro_batch, trials=4, early_stop=False)
    assert bench.launcher is not None
    assert all(plan.measuring.racing is None for plan in bench.launcher.plans)


def test_no_anchors(bench: Bench) -> None:
    result = bench.search(by_micro_batch, trials=4, anchors=False)
    assert [t.header.origin for t in result.contents.trials] == ["baseline"] + ["proposal"] * 3


def test_resumed_search_says_its_sampler_and_observations(bench: Bench) -> None:
    """BUG-023."""
    bench.search(by_micro_batch, trials=15)
    bench.search(by_micro_batch, trials=16)
    started = next(e for e in bench.events if isinstance(e, SearchStarted))
    assert started.resumed
    assert (started.sampler, started.observations, started.counted) == ("tpe", 15, 15)
