"""``autotune compare``: two configurations of a recorded study, launched in turns."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from scripted import GIB, SPACE, Act, Bench, Script, ScriptedLauncher, by_micro_batch

from autotune.cli.main import main
from autotune.contract.folder import StudyFolder
from autotune.contract.plan import Plan
from autotune.errors import InputError, InterruptedSearch, NothingFeasibleError
from autotune.report import document
from autotune.search import history
from autotune.search.compare import Compared, CompareRequest, run_compare
from autotune.search.compare import document as compared_document
from autotune.search.interrupts import Interrupts
from autotune.store.importer import read_study
from autotune.store.records import StudyContents

FILE = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": "auto",
    "train_batch_size": 64,
    "gradient_clipping": 0.5,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": 2e6,
        "prefetch_bucket_size": 1000,
        "stage3_param_persistence_threshold": "auto",
        "allgather_bucket_size": 5e8,
    },
}


def contents_of(bench: Bench) -> StudyContents:
    return read_study(StudyFolder.of(bench.runs, "s"))


def compare(
    bench: Bench, a: str, b: str, script: Script = by_micro_batch, **options: Any
) -> tuple[Compared, ScriptedLauncher]:
    launcher = ScriptedLauncher(script)
    options.pop("prepare", lambda launcher: None)(launcher)
    interrupts = options.pop("interrupts", None) or Interrupts()
    contents = contents_of(bench)
    request = CompareRequest(
        names=(a, b),
        best=document.build(contents)["best"]["trial"],
        study=contents.study,
        runs=bench.runs,
        make_launcher=lambda *_: launcher,
        **options,
    )
    bench.events = []
    return run_compare(request, bench.events.append, interrupts=interrupts), launcher


@pytest.fixture(scope="module")
def finished(memory: Path) -> tuple[Path, Path]:
    """The folder of a finished study in which the largest micro-batch won, and a copy of it."""
    folder = memory / "studied"
    folder.mkdir()
    Bench(folder).search(by_micro_batch, trials=12)
    return folder, shutil.copytree(folder, memory / "kept")


@pytest.fixture
def studied(finished: tuple[Path, Path]) -> Bench:
    """The finished study as its search left it, whatever an earlier test did in its folder."""
    folder, kept = finished
    shutil.rmtree(folder)
    shutil.copytree(kept, folder)
    return Bench(folder)


def slowest(contents: StudyContents) -> int:
    measured = [t for t in contents.trials if t.measurement is not None and t.number]
    return max(measured, key=lambda t: t.measurement.s_per_it).number  # type: ignore[union-attr]


def test_best_against_the_baseline_alternates_and_is_recorded(studied: Bench) -> None:
    before = contents_of(studied)
    compared, launcher = compare(studied, "baseline", "best")
    result = compared.result
    assert (result.verdict, result.rounds) == ("b_faster", 5)
    assert result.ratio == pytest.approx(0.3 * 8 / 1.0)
    after = contents_of(studied)
    new = after.remeasurements[len(before.remeasurements) :]
    assert [(a.header.role, a.header.comparison, a.header.round) for a in new] == [
        ("compared", 0, index) for index in range(5) for _ in "ab"
    ]
    assert [a.header.trial for a in new] == [0, before.verdict.best_trial] * 5  # type: ignore[union-attr]
    assert len(launcher.plans) == 10
    assert all(plan.measuring.racing is None for plan in launcher.plans)
    assert all(plan.numerics.reference for plan in launcher.plans)
    assert after.verdict == before.verdict
    assert history.counted(after) == history.counted(before)
    report = document.build(after)
    assert report["best"]["verdict"] == "faster"
    assert report["best"]["later_trials"] == 0
    assert report["best"]["num_launches"] == 1 + 5 + 5
    assert report["remeasurements"][-1]["comparison"] == 0
    saved = json.loads(
        (studied.runs / "s" / "comparisons" / "00000" / "result.json").read_text("utf-8")
    )
    assert saved["ratio"] == result.ratio


def test_the_order_of_the_names_is_the_direction_of_the_ratio(studied: Bench) -> None:
    compared, _ = compare(studied, "best", "0", rounds=3)
    assert compared.result.verdict == "a_faster"
    assert compared.result.ratio == pytest.approx(1.0 / (0.3 * 8))
    shown = compared_document(compared)
    assert shown["a"]["name"] == "best"
    assert shown["b"]["trial"] == 0
    assert len(shown["a"]["launches_s_per_it"]) == 3
    assert shown["winner"] == shown["a"]["trial"]


def test_equal_ones_are_a_tie_that_goes_to_the_one_nearer_the_baseline(studied: Bench) -> None:
    again = itertools.count()
    times = [0.100, 0.101, 0.099, 0.1005, 0.1002, 0.0991, 0.1012, 0.1001, 0.0995, 0.1003]
    compared, _ = compare(
        studied, "best", "baseline", lambda plan: Act(s_per_it=times[next(again)])
    )
    assert compared.result.verdict == "tie"
    assert compared.result.winner == 0
    assert "nearer to the baseline" in compared.result.reason


def test_a_tie_does_not_go_to_the_one_whose_allocator_ran_out_of_room(studied: Bench) -> None:
    """As in the confirmation of a search, even where it needs less memory."""
    again = itertools.count()

    def script(plan: Plan) -> Act:
        best = plan.config["workload.micro_batch"] != 1
        seconds = 0.1 + 0.001 * (next(again) % 3)
        return Act(s_per_it=seconds, peak_bytes=GIB if best else 2 * GIB, alloc_retries=int(best))

    compared, _ = compare(studied, "best", "baseline", script)
    assert compared.result.verdict == "tie"
    assert compared.result.winner == 0
    assert "trial 0 kept its allocator's room" in compared.result.reason


def test_a_deepspeed_file_becomes_a_trial_that_does_not_count(studied: Bench) -> None:
    path = studied.runs.parent / "mine.json"
    path.write_text(json.dumps(FILE))
    before = contents_of(studied)
    compared, launcher = compare(studied, "baseline", str(path), rounds=2)
    after = contents_of(studied)
    trial = after.trials[-1]
    assert len(after.trials) == len(before.trials) + 1
    assert trial.header.origin == "compared:mine.json"
    config = trial.header.config
    assert config["workload.micro_batch"] == 4
    assert config["zero3.reduce_bucket_size"] == 2_000_000
    assert type(config["zero3.reduce_bucket_size"]) is int
    assert config["zero3.stage3_prefetch_bucket_size"] == 1000
    assert config["zero3.stage3_param_persistence_threshold"] == 10 * 128
    assert config["zero3.sub_group_size"] == 1_000_000_000  # the engine's own default
    assert launcher.plans[0].purpose == "trial"
    assert compared.result.ratio == pytest.approx(0.3 * 8 / (0.6 * 2))
    assert history.counted(after) == history.counted(before)
    said = "\n".join(compared.notes)
    for words in ("train_batch_size 64", "gradient_clipping 0.5", "bf16.enabled True"):
        assert words in said
    assert not after.inside(trial)  # its persistence threshold is not the space's
    again, launcher = compare(studied, str(path), "0", rounds=2)
    assert len(contents_of(studied).trials) == len(after.trials)
    assert len(launcher.plans) == 4
    assert again.result.number == 1


def test_the_search_goes_on_as_if_nothing_had_been_compared(studied: Bench) -> None:
    path = studied.runs.parent / "mine.json"
    path.write_text(json.dumps(FILE))
    compare(studied, "baseline", str(path), rounds=2)
    result = studied.search(by_micro_batch, trials=12)
    assert studied.launcher is not None
    assert studied.launcher.plans == []
    assert result.verdict.verdict == "faster"
    studied.search(by_micro_batch, trials=13)
    assert history.counted(contents_of(studied)) == 13


def test_what_export_writes_is_read_back_as_the_same_configuration(
    studied: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    path = studied.runs.parent / "best.json"
    runs = str(studied.runs)
    assert main(["export", "s", "--runs", runs, "-o", str(path)]) == 0
    capsys.readouterr()
    best = contents_of(studied).verdict.best_trial  # type: ignore[union-attr]
    with pytest.raises(InputError, match=f"are the same configuration .trial {best}"):
        compare(studied, "best", str(path))


def with_zero(**changes: Any) -> dict[str, Any]:
    return {**FILE, "zero_optimization": {**FILE["zero_optimization"], **changes}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{", "no JSON file"),
        ("[1]", "holds no object"),
        (json.dumps({"bf16": {}}), "no section zero_optimization"),
        (json.dumps(with_zero(stage=2)), "stage 2"),
        (json.dumps(with_zero(new_setting=1)), "new_setting is no setting"),
        (json.dumps(with_zero(sub_group_size="auto")), "auto, for which there is no rule"),
        (json.dumps(with_zero(reduce_bucket_size=1.5)), "reduce_bucket_size cannot be 1.5"),
        (json.dumps(with_zero(reduce_bucket_size=-1)), "outside what the engine takes"),
        (json.dumps(with_zero(overlap_comm="yes")), "overlap_comm cannot be 'yes'"),
        (json.dumps({**FILE, "train_micro_batch_size_per_gpu": 3}), "cannot run here"),
    ],
)
def test_a_file_that_cannot_be_taken_over_is_refused_before_a_launch(
    studied: Bench, content: str, match: str
) -> None:
    path = studied.runs.parent / "wrong.json"
    path.write_text(content)
    before = contents_of(studied)
    with pytest.raises(InputError, match=match):
        compare(studied, "baseline", str(path))
    assert contents_of(studied) == before


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("99", "has no trial 99"),
        ("nothing.json", "there is no such file"),
        ("0", "are the same configuration"),
    ],
)
def test_names_that_mean_nothing_to_compare(studied: Bench, name: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        compare(studied, "baseline", name)


def test_a_failed_trial_has_no_time_to_compare(bench: Bench) -> None:
    def script(plan: Plan) -> Act:
        if plan.config["workload.micro_batch"] == 8:
            return Act(error="CUDA out of memory", error_type="torch.OutOfMemoryError")
        return by_micro_batch(plan)

    bench.search(script, trials=12)
    failed = next(t for t in contents_of(bench).trials if t.state == "failed")
    with pytest.raises(InputError, match="failed .oom_device"):
        compare(bench, "baseline", str(failed.number))


def test_one_that_fails_when_launched_again_is_said_and_recorded(studied: Bench) -> None:
    best = contents_of(studied).verdict.best_trial  # type: ignore[union-attr]

    def script(plan: Plan) -> Act:
        if plan.config["workload.micro_batch"] == 8:
            return Act(error="boom")
        return by_micro_batch(plan)

    compared, _ = compare(studied, "baseline", "best", script)
    assert compared.result.verdict == "failed"
    assert compared.result.winner is None
    assert "boom" in compared.result.reason
    assert contents_of(studied).remeasurements[-1].header.trial == best


def test_an_interrupted_comparison_goes_on_with_the_same_call(studied: Bench) -> None:
    interrupts = Interrupts()
    first = len(contents_of(studied).remeasurements)

    def prepare(launcher: ScriptedLauncher) -> None:
        def stop(plan: Plan) -> None:
            if plan.number == first + 4:
                interrupts.request()

        launcher.on_submit = stop

    with pytest.raises(InterruptedSearch) as caught:
        compare(studied, "baseline", "best", interrupts=interrupts, prepare=prepare)
    assert caught.value.exit_code == 130
    compared, launcher = compare(studied, "baseline", "best")
    assert compared.result.number == 0
    assert compared.result.rounds == 5
    assert len(launcher.plans) == 6


def test_other_conditions_are_refused(studied: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.search import where

    real = where.environment

    def other(topology: Any) -> dict[str, Any]:
        facts = real(topology)
        return {**facts, "packages": {**facts["packages"], "torch": "9.9.9"}}

    monkeypatch.setattr(where, "environment", other)
    with pytest.raises(InputError, match=r"other conditions.*torch: .* -> 9\.9\.9"):
        compare(studied, "baseline", "best")


def test_a_study_without_a_baseline_time_has_nothing_to_check_against(bench: Bench) -> None:
    with pytest.raises(NothingFeasibleError):
        bench.search(lambda plan: Act(error="boom"), trials=3)
    contents = contents_of(bench)
    request = CompareRequest(
        names=("0", "1"),
        best=None,
        study=contents.study,
        runs=bench.runs,
        make_launcher=lambda *_: ScriptedLauncher(by_micro_batch),
    )
    with pytest.raises(NothingFeasibleError, match="has no valid time"):
        run_compare(request, bench.events.append, interrupts=Interrupts())


@pytest.mark.parametrize("rounds", [0, 1, 100_000])
def test_one_round_shows_no_spread(studied: Bench, rounds: int) -> None:
    with pytest.raises(InputError, match="--rounds"):
        compare(studied, "baseline", "best", rounds=rounds)


def test_the_command_names_its_faults_and_codes(
    bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["compare", "0", "1", "--runs", str(tmp_path / "none")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    bench.search(by_micro_batch, trials=3)
    runs = ["--runs", str(bench.runs)]
    assert main(["compare", "0", "1", "--study", "other", *runs]) == 2
    assert "no study 'other'" in capsys.readouterr().err
    assert main(["compare", "0", *runs]) == 2
    assert main(["compare", "0", "0", *runs, "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the same configuration" in captured.err


def test_the_text_says_who_won_by_how_much_and_what_differs(studied: Bench) -> None:
    from autotune.cli.compare import lines

    compared, _ = compare(studied, "baseline", "best", rounds=2)
    text = "\n".join(lines(compared))
    assert "best is faster than baseline: 2.400× (95 % interval 2.400 … 2.400)" in text
    assert "workload.micro_batch: 1 -> 8" in text
    swapped = dataclasses.replace(
        compared, result=dataclasses.replace(compared.result, verdict="a_faster", ratio=0.5)
    )
    assert "best is slower than baseline: 0.500×" in "\n".join(lines(swapped))


def test_the_space_of_the_study_is_used_though_the_file_is_gone(studied: Bench) -> None:
    studied.file.unlink()
    compared, _ = compare(studied, "0", str(slowest(contents_of(studied))), rounds=2)
    assert compared.result.rounds == 2
    assert SPACE in compared.contents.study.space_text
