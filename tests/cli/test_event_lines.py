"""What a running search prints, and what its panel says."""

import io
from typing import Any

import pytest
from study_factory import failed, measured

from autotune.cli.display import Panel, PlainDisplay
from autotune.cli.event_lines import lines_of
from autotune.search.events import (
    ConfirmationStarted,
    Finished,
    LaunchEnded,
    LaunchStarted,
    Message,
    PhaseChanged,
    Progress,
    SearchStarted,
)
from autotune.store.records import Verdict

BASELINE = {
    "micro_batch": 1,
    "activation_checkpointing": "none",
    "stage3_param_persistence_threshold": 100_000,
    "reduce_bucket_size": 500_000_000,
    "overlap_comm": True,
}


def started(label: str = "proposal", purpose: Any = "trial", **changes: Any) -> LaunchStarted:
    values: dict[str, Any] = {"number": 3, "attempt": 0, "params": BASELINE, "changed": {}}
    return LaunchStarted(purpose=purpose, label=label, **(values | changes))


def ended(outcome: Any, label: str = "proposal") -> LaunchEnded:
    return LaunchEnded(
        purpose="trial", number=3, attempt=0, label=label, outcome=outcome, log="runs/a/rank-0.log"
    )


def progress(**changes: Any) -> Progress:
    values: dict[str, Any] = {
        "counted": 3,
        "trials": 8,
        "baseline_trial": 0,
        "baseline_s_per_it": 0.8,
        "best_trial": 2,
        "best_s_per_it": 0.5,
        "seconds_left": 40.0,
    }
    return Progress(**(values | changes))


def verdict(word: Any, best: int | None, **changes: Any) -> Finished:
    return Finished(
        verdict=Verdict(
            verdict=word, best_trial=best, context="a", space_fingerprint="b", at=1.0, **changes
        )
    )


def test_a_trial_shows_only_what_it_changes():
    changed = {"reduce_bucket_size": 1_000, "overlap_comm": False}
    assert lines_of(started(changed=changed)) == [
        "trial 3 (proposal): reduce_bucket_size=1_000, overlap_comm=false"
    ]
    assert lines_of(started("anchor defaults")) == ["trial 3 (anchor defaults): as the baseline"]


def test_the_baseline_shows_all_settings_within_the_width():
    lines = lines_of(started("baseline", number=0), 60)
    assert " ".join(line.strip() for line in lines) == (
        "trial 0 (baseline): micro_batch=1, activation_checkpointing=none, "
        "stage3_param_persistence_threshold=100_000, reduce_bucket_size=500_000_000, "
        "overlap_comm=true"
    )
    assert max(map(len, lines)) <= 60
    assert all(line.startswith("    ") for line in lines[1:])


def test_a_launch_again_names_no_settings():
    line = lines_of(started("round 2 of 5: finalist (trial 3)", "remeasurement", attempt=1))
    assert line == ["round 2 of 5: finalist (trial 3), attempt 2"]


def test_an_outcome_is_a_figure_or_a_reason_with_its_log():
    assert lines_of(ended(measured(0.5))) == ["  0.5000 s/it, 256 tokens/s"]
    assert lines_of(ended(measured(0.5, state="stopped_early", unsteady=True))) == [
        "  0.5000 s/it, 256 tokens/s (stopped early, unsteady)"
    ]
    assert lines_of(ended(failed("oom_device", "no memory", rank=1, phase="check"))) == [
        "  oom_device (rank 1, phase check): no memory",
        "  log: runs/a/rank-0.log",
    ]
    assert lines_of(ended(failed("interrupted", "stopped"))) == ["  interrupted: stopped"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "best is trial 2, 0.5000 s/it, 1.60× the baseline's speed; about 40 s to the last"),
        ({"best_trial": 0, "best_s_per_it": 0.8}, "best is the baseline, 0.8000 s/it; about 40 s"),
        ({"baseline_s_per_it": None}, "best is trial 2, 0.5000 s/it; about 40 s"),
        ({"best_s_per_it": None, "best_trial": None}, "nothing measured yet; about 40 s"),
    ],
)
def test_where_the_search_stands(changes, text):
    assert lines_of(progress(**changes))[0].startswith(f"  3 of 8 trials; {text}")


def test_after_the_last_trial_no_time_is_left_to_tell():
    line = lines_of(progress(counted=8, seconds_left=0.0))[0]
    assert line == "  8 of 8 trials; best is trial 2, 0.5000 s/it, 1.60× the baseline's speed"


@pytest.mark.parametrize(
    ("event", "first"),
    [
        (
            verdict("faster", 2, finalist=2, ratio=1.62, low=1.5, high=1.7),
            "result: trial 2 is faster than the baseline",
        ),
        (
            verdict("keep_baseline", 0, finalist=2, ratio=1.62, low=1.5, high=1.7, reason="why"),
            "result: keep your baseline: why",
        ),
        (
            verdict("tie", 2, finalist=2, ratio=1.62, low=1.5, high=1.7, reason="why"),
            "result: a tie, won by trial 2: why",
        ),
    ],
)
def test_a_verdict_comes_with_what_was_measured(event, first):
    assert lines_of(event) == [
        first,
        "  Launched in turns, trial 2 ran at 1.62× the baseline's speed "
        "(95 % interval 1.50 … 1.70).",
    ]


def test_a_verdict_without_a_comparison_is_one_line():
    assert lines_of(verdict("keep_baseline", 0, reason="nothing was faster")) == [
        "result: keep your baseline: nothing was faster"
    ]
    assert lines_of(verdict("none_feasible", None, reason="why")) == [
        "result: nothing feasible: why"
    ]


def test_plain_output_is_the_lines():
    stream = io.StringIO()
    with PlainDisplay(stream) as show:
        show(
            SearchStarted(
                study="a", trials=8, counted=2, sampler="tpe", observations=2, resumed=True,
                max_trial_time_s=300.0,
            )
        )  # fmt: skip
        show(PhaseChanged(phase="build"))
        show(Message(text="one\ntwo", level="warning"))
    assert stream.getvalue().splitlines() == [
        "study a goes on: 2 of 8 trials are done, sampler tpe learns from 2",
        "warning: one",
        "two",
    ]


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def wait(self, seconds):
            self.now += seconds

    made = Clock()
    monkeypatch.setattr("autotune.cli.display.time.monotonic", lambda: made.now)
    return made


def test_the_panel_says_what_runs_and_how_long_it_takes(clock):
    panel = Panel()
    assert panel.rows() == [("now", "starting")]
    panel.see(started())
    panel.see(PhaseChanged(phase="build"))
    clock.wait(7)
    assert panel.rows() == [("now", "trial 3 (proposal) · build · 7 s")]
    panel.see(ended(measured(0.5)))
    panel.see(progress())
    assert panel.rows() == [
        ("now", "between launches"),
        ("so far", "best is trial 2, 0.5000 s/it, 1.60× the baseline's speed"),
        ("trials", "3 of 8"),
        ("time left", "about 40 s to the last trial, then the confirmation"),
    ]


def test_the_confirmation_has_its_own_time_left(clock):
    panel = Panel()
    panel.see(progress(counted=8, seconds_left=0.0))
    panel.see(ConfirmationStarted(finalist=2, rounds=5, done=1))
    assert "time left" not in dict(panel.rows())
    panel.see(started("round 2 of 5: baseline", "remeasurement"))
    clock.wait(6)
    panel.see(ended(measured(0.5), "round 2 of 5: baseline"))
    assert dict(panel.rows())["time left"] == "about 42 s"
