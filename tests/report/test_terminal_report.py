from __future__ import annotations

import io
from pathlib import Path

import pytest
from study_factory import CONFIG, StudyBuilder, failed, make_study, measured

from autotune.contract.failures import next_step
from autotune.report.document import build
from autotune.report.terminal import changed_settings, show
from autotune.store.importer import read_study


@pytest.fixture
def study(tmp_path: Path) -> StudyBuilder:
    return StudyBuilder(tmp_path)


def shown(study: StudyBuilder) -> str:
    contents = read_study(study.folder)
    stream = io.StringIO()
    show(contents, build(contents), stream)
    return stream.getvalue()


def test_a_faster_configuration(study: StudyBuilder) -> None:
    study.trial(measured(0.8), config=CONFIG)
    best = study.trial(measured(0.5), config=CONFIG | {"zero3.reduce_bucket_size": 12_345_678})
    study.verdict("faster", best, ratio=1.6, low=1.55, high=1.65)
    text = shown(study)
    assert "Trial 1 is 1.60× as fast as your baseline (95 % interval 1.55 … 1.65)." in text
    row = next(line for line in text.splitlines() if "zero3.reduce_bucket_size" in line)
    assert row.split() == ["zero3.reduce_bucket_size", "500,000,000", "12,345,678", "live"]
    assert "zero3.stage3_prefetch_bucket_size" not in text
    assert "2 measured" in text
    assert "torch 2.13.0" in text
    assert "\x1b" not in text
    contents = read_study(study.folder)
    assert changed_settings(build(contents)) == (
        ("zero3.reduce_bucket_size", 500_000_000, 12_345_678),
    )


def test_unverified_keys_and_bound_layers_are_shown(study: StudyBuilder) -> None:
    """BUG-008: what was passed through is marked, in words and in the document."""
    notes = {"unverified": {"zero_optimization": {"some_key": 1}}}
    study.trial(measured(0.8, notes=notes))
    text = shown(study)
    assert "zero_optimization.some_key = 1 was passed on and not read back" in text
    assert "attention: sdpa" in text
    baseline = build(read_study(study.folder))["baseline"]
    assert baseline["unverified"] == {"zero_optimization": {"some_key": 1}}
    assert baseline["read_back"] == {"zero3.reduce_bucket_size": "live"}
    assert baseline["implementations"] == {"attention": "sdpa"}


def test_what_changes_rounding_is_marked(study: StudyBuilder) -> None:
    study.trial(measured(0.8, notes={"rounding": ["zero3.offload_optimizer"]}))
    assert "zero3.offload_optimizer changes rounding" in shown(study)
    report = build(read_study(study.folder))
    assert report["baseline"]["rounding"] == ["zero3.offload_optimizer"]


def test_a_time_without_a_spread_claims_none(study: StudyBuilder) -> None:
    study.trial(measured(0.8, low=0.8, high=0.8))
    line = next(line for line in shown(study).splitlines() if line.startswith("baseline"))
    assert line.split(": ")[1] == "0.8000 s/it"


def test_no_gain_is_said_plainly(study: StudyBuilder) -> None:
    study.trial(measured(0.8))
    study.trial(measured(0.79))
    study.verdict("keep_baseline", 0, finalist=1, ratio=1.0, low=0.97, high=1.03)
    text = shown(study)
    assert "Keep your baseline" in text
    assert "trial 1 ran at 1.00× the baseline's speed (95 % interval 0.97 … 1.03)." in text
    assert "Changed settings" not in text


def test_a_trial_shows_what_it_changes_below_its_figures(study: StudyBuilder) -> None:
    settings = {f"stage3_setting_{i}": 1_000_000 * i for i in range(1, 9)}
    study.trial(measured(0.8), params=settings)
    study.trial(measured(1.36), params=settings | {"stage3_setting_2": 5, "micro_batch": 4})
    study.trial(measured(0.9), params=settings, origin="anchor:defaults")
    study.trial(failed("crash", "a long reason " * 20), params=settings)
    lines = shown(study).splitlines()
    at = next(i for i, line in enumerate(lines) if line.split()[:2] == ["1", "1.360"])
    assert lines[at].split() == ["1", "1.360", "94", "3.00", "GiB", "complete"]
    assert lines[at + 1].strip() == "proposal: stage3_setting_2=5, micro_batch=4"
    assert lines[at + 3].strip() == "anchor defaults: as the baseline"
    whole = " ".join(line.strip() for line in lines[lines.index("Trials") : at])
    assert "baseline: stage3_setting_1=1_000_000, stage3_setting_2=2_000_000" in whole


def test_every_line_but_paths_fits_a_terminal_of_80_columns(
    study: StudyBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {f"stage3_max_reuse_distance_{i}": 1_000_000 * i for i in range(1, 9)}
    study.trial(measured(0.8, unsteady=True), params=settings)
    best = study.trial(measured(0.5), params=settings | {"stage3_max_reuse_distance_2": 5})
    study.trial(failed("crash", "a long reason " * 20), params=settings)
    study.verdict("faster", best, ratio=1.6, low=1.55, high=1.65)
    monkeypatch.setattr("autotune.report.terminal._PIPE_WIDTH", 80)
    lines = [line for line in shown(study).splitlines() if str(study.runs) not in line]
    assert max(map(len, lines)) <= 80
    assert any("unsteady: times within the launch" in line for line in lines)


def test_a_tie_says_who_gets_it(study: StudyBuilder) -> None:
    study.trial(measured(0.8))
    study.trial(measured(0.79))
    study.verdict("tie", 1, ratio=1.01, low=0.98, high=1.04)
    assert "it goes to trial 1" in shown(study)


def test_failures_come_with_counts_a_log_and_the_next_step(study: StudyBuilder) -> None:
    """BUG-071: causes with counts, one example log each, and what to try."""
    study.trial(failed("oom_device", "CUDA out of memory on rank 1", rank=1))
    study.trial(failed("oom_device", "another one"))
    study.trial(failed("crash", "ModuleNotFoundError: No module named 'fla'"))
    study.verdict("none_feasible", None, reason="the baseline failed: CUDA out of memory on rank 1")
    text = shown(study)
    assert "No valid configuration was found." in text
    assert "The baseline itself failed (oom_device): CUDA out of memory on rank 1" in text
    assert "the baseline failed: CUDA" not in text  # once is enough
    assert str(study.folder.attempt("trial", 0, 0).log_file(1)) in text
    assert str(study.folder.attempt("trial", 2, 0).log_file(0)) in text
    assert "micro_batch" in text
    assert "install the missing package" in text
    rows = [line.split()[:2] for line in text.splitlines() if line.strip()]
    assert ["2", "oom_device"] in rows
    assert ["1", "crash"] in rows


def test_every_failure_kind_has_a_next_step() -> None:
    from autotune.contract.failures import POLICIES

    steps = {kind: next_step(kind, "a reason") for kind in POLICIES}
    assert len(set(steps.values())) == len(steps)


def test_text_from_trials_is_only_text(study: StudyBuilder) -> None:
    study.trial(measured(0.8), params={"[red]name[/red]": "[link=http://x]y[/link]"})
    study.trial(failed("crash", "[bold]boom[/bold] \x1b[2J\x1b]0;owned\x07 [/nonsense]"))
    text = shown(study)
    assert "[red]name[/red]=[link=http://x]y[/link]" in text
    assert "[bold]boom[/bold]" in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_a_baseline_outside_the_ranges_is_marked(study: StudyBuilder) -> None:
    """BUG-018."""
    study.trial(measured(0.8), inside_space=False)
    assert "outside the ranges" in shown(study)


def test_unfinished_searches_claim_nothing(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path, make_study(workload={}))
    assert "Nothing was measured yet" in shown(study)
    study.trial(measured(0.8))
    assert "nothing is faster than your baseline" in shown(study)
    study.trial(measured(0.4))
    text = shown(study)
    assert "Fastest so far is trial 1, 2.00×, not confirmed yet." in text


def test_refused_files_are_named(study: StudyBuilder) -> None:
    study.trial(measured(0.8))
    study.folder.attempt("trial", 0, 0).outcome_file.write_bytes(b"\x80\x04")
    assert "not a JSON record" in shown(study)
