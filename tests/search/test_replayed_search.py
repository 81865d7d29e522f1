"""Whole searches over a recorded table: nothing runs, and the known optimum is found."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.main import main
from autotune.contract.table import Table, TableDevice, TableRow, read_table, to_line
from autotune.errors import InputError
from autotune.report import document
from autotune.search import preflight
from autotune.search.compare import CompareRequest, run_compare
from autotune.search.events import Message
from autotune.search.interrupts import Interrupts
from autotune.search.request import SearchRequest, SearchResult
from autotune.search.session import run_search
from autotune.store.importer import read_study

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
GRID = BENCHMARKS / "tables" / "qwen3-tiny-fsdp2.yaml"
TABLE = BENCHMARKS / "results" / "tables" / "qwen3-tiny-fsdp2.jsonl.gz"
LAUNCHER = f"replay={TABLE}"
BASELINE = {
    "micro_batch": 1,
    "activation_checkpointing": "none",
    "reshard_after_forward": True,
    "layers_per_unit": 1,
}


@pytest.fixture(scope="module")
def table() -> Table:
    return read_table(TABLE)


def search(
    folder: Path, *, trials: int, launcher: str | None = LAUNCHER, **options
) -> SearchResult:
    request = SearchRequest(
        space=str(options.pop("space", GRID)),
        trials=trials,
        study="s",
        runs=folder / "runs",
        launcher=launcher,
        **options,
    )
    return run_search(request, lambda _event: None, interrupts=Interrupts())


@pytest.fixture(scope="module")
def steady(table: Table, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The table without its repeated launches: then launches differ by their iterations alone.

    Where a table was recorded on a busy CPU, repeats lie so far apart that nothing can be told
    from another by a few launches.
    """
    path = tmp_path_factory.mktemp("steady") / "steady.jsonl"
    rows = [row for row in table.rows if not row.repeat]
    path.write_bytes(b"".join(map(to_line, (table.header, *rows))))
    return f"replay={path}"


@pytest.fixture(scope="module")
def whole(table: Table, steady: str, tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    folder = tmp_path_factory.mktemp("whole")
    return search(folder, trials=table.header.num_configs, launcher=steady)


def what(params: Mapping[str, Any]) -> str:
    """A configuration's name: keys change when the program gains knobs."""
    return json.dumps(params, sort_keys=True)


def first_launches(table: Table) -> dict[str, TableRow]:
    return {what(row.params): row for row in table.rows if not row.repeat}


def test_a_search_finds_the_tables_optimum(whole: SearchResult, table: Table) -> None:
    recorded = first_launches(table)
    trials = {what(trial.header.params): trial for trial in whole.contents.trials}
    assert trials.keys() == recorded.keys()
    times = {name: row.s_per_it for name, row in recorded.items() if row.s_per_it is not None}
    verdict = whole.verdict
    assert verdict.verdict == "faster"
    (best,) = (name for name, trial in trials.items() if trial.number == verdict.best_trial)
    assert times[best] <= 1.03 * min(times.values())
    assert verdict.ratio == pytest.approx(times[what(BASELINE)] / times[best], rel=0.2)


def test_the_study_says_that_nothing_was_run(whole: SearchResult, table: Table, capsys) -> None:
    report = document.build(whole.contents)
    header = table.header
    played = read_table(Path(whole.contents.study.launcher.partition("=")[2]))
    assert report["replayed_from"] == {
        "table": header.name,
        "sha256": played.digest,
        "recorded_at": header.recorded_at,
    }
    assert report["environment"]["cpu"] == header.environment["cpu"]
    assert report["topology"]["processes"] == header.topology.processes
    runs = str(whole.contents.folder.path.parent)
    assert main(["report", "s", "--runs", runs]) == 0
    assert f"played from the table {header.name}" in " ".join(capsys.readouterr().out.split())
    assert main(["status", "s", "--runs", runs]) == 0
    assert f"played from the table {header.name}" in " ".join(capsys.readouterr().out.split())
    target = whole.contents.folder.path.parent / "export" / "accelerate.yaml"
    target.parent.mkdir()
    words = ["export", "s", "--runs", runs, "--format", "accelerate", "-o", str(target)]
    assert main(words) == 0
    assert "played from the table" in " ".join(capsys.readouterr().out.split())
    about = json.loads(target.with_name("accelerate.yaml.provenance.json").read_text())
    assert about["replayed_from"] == report["replayed_from"]


def test_overheads_are_the_recorded_ones(whole: SearchResult, table: Table) -> None:
    recorded = first_launches(table)
    for trial in whole.contents.trials:
        assert trial.outcome is not None
        row = recorded[what(trial.header.params)]
        assert trial.outcome.overhead_s == pytest.approx(row.overhead_s)


def outcomes(result: SearchResult) -> list[tuple[str, float | None]]:
    """Settings, or the trial of a re-measurement, with the time: in the order of the launches."""
    trials = [(json.dumps(one.header.params), one.measurement) for one in result.contents.trials]
    again = [(str(one.header.trial), one.measurement) for one in result.contents.remeasurements]
    return [
        (what, None if measured is None else measured.s_per_it)
        for what, measured in (*trials, *again)
    ]


def test_a_search_that_is_resumed_plays_on_from_its_table(tmp_path: Path) -> None:
    unbroken = search(tmp_path / "unbroken", trials=9)
    search(tmp_path / "resumed", trials=4)
    resumed = search(tmp_path / "resumed", trials=9, launcher=None)
    assert resumed.contents.study.launcher == LAUNCHER
    trials = [one for one in outcomes(resumed) if one[0].startswith("{")]
    assert trials[:4] == outcomes(unbroken)[:4]
    assert resumed.contents.study.context == unbroken.contents.study.context
    assert all("replayed" in one.measurement.notes for one in resumed.contents.trials)


def test_the_same_seed_plays_the_same_study(tmp_path: Path) -> None:
    first, again = (search(tmp_path / name, trials=6) for name in ("a", "b"))
    assert outcomes(first) == outcomes(again)
    other = search(tmp_path / "c", trials=6, overrides=("search.seed=5",))
    assert outcomes(other) != outcomes(first)


def test_two_trials_are_compared_by_the_studys_launcher(steady: str, tmp_path: Path) -> None:
    result = search(tmp_path, trials=4, launcher=steady)
    contents = read_study(result.contents.folder)
    worst = max(contents.trials, key=lambda one: one.measurement.s_per_it)
    best = min(contents.trials, key=lambda one: one.measurement.s_per_it)
    request = CompareRequest(
        names=(str(worst.number), str(best.number)),
        best=None,
        study=contents.study,
        runs=tmp_path / "runs",
    )
    found = run_compare(request, lambda _event: None, interrupts=Interrupts())
    assert found.result.verdict == "b_faster"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("params.forward_prefetch={low: 0, high: 100000}",), "this space has ranges"),
        (("params.layers_per_unit.choices=[2, 3]",), "no choice of layers_per_unit is left"),
        (("baseline.layers_per_unit=2",), "cannot run the baseline"),
        (("workload.global_batch=16",), "recorded with other work: global_batch 8 there, 16 here"),
        (("workload.data.max_length=128",), "recorded with other work: samples"),
        (("topology.processes=4",), "topology.processes is 4, and the launcher has trials of 2"),
    ],
)  # fmt: skip
def test_a_space_outside_the_table_is_refused_before_anything_starts(
    overrides: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words) as caught:
        search(tmp_path, trials=4, overrides=overrides)
    assert str(caught.value).startswith(f"{GRID}:")
    assert not (tmp_path / "runs" / "s").exists()


def test_a_partial_table_cannot_play_the_whole_grid(table: Table, tmp_path: Path) -> None:
    part = tmp_path / "part.jsonl"
    part.write_bytes(b"".join(map(to_line, (table.header, *table.rows[:-9]))))
    with pytest.raises(InputError, match="lacks [1-9] configurations of this space, such as micro"):
        search(tmp_path, trials=4, launcher=f"replay={part}")


def test_values_that_no_launch_had_are_left_out_with_the_reason(tmp_path: Path) -> None:
    said: list[Any] = []
    request = SearchRequest(
        space=str(GRID),
        overrides=("params.micro_batch.choices=[1, 2, 4]", "params.layers_per_unit.choices=[1, 2]"),
        runs=tmp_path / "runs",
        trials=2,
        launcher=LAUNCHER,
    )
    run_search(request, said.append, interrupts=Interrupts())
    texts = [event.text for event in said if isinstance(event, Message)]
    assert "layers_per_unit: 2 is left out: table qwen3-tiny-fsdp2 has no launch with it" in texts
    assert any(text.startswith("nothing is run: trials are played from") for text in texts)


def on_gpus(table: Table) -> bytes:
    """The table as if it had been recorded on two H200."""
    header = dataclasses.replace(
        table.header,
        topology=dataclasses.replace(table.header.topology, device="cuda"),
        devices=(TableDevice(name="NVIDIA H200", memory_bytes=141 * 1024**3),) * 2,
        environment={
            **table.header.environment,
            "device": "cuda",
            "gpus": [{"name": "NVIDIA H200", "memory_mib": 143_771}] * 2,
        },
    )
    owners = ("fsdp2.", "workload.")
    rows = [
        dataclasses.replace(
            row, config={name: v for name, v in row.config.items() if name.startswith(owners)}
        )
        for row in table.rows
        if not row.repeat
    ]
    return b"".join(map(to_line, (header, *rows)))


def test_a_table_of_gpus_is_searched_on_any_machine(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "gpus.jsonl"
    path.write_bytes(on_gpus(table))
    result = search(tmp_path, trials=6, launcher=f"replay={path}")
    report = document.build(result.contents)
    assert report["topology"]["device"] == "cuda"
    assert report["environment"]["gpus"][0]["name"] == "NVIDIA H200"
    measured = [trial for trial in report["trials"] if trial["s_per_it"] is not None]
    assert len(measured) == 6
    # The peak of the recorded devices is what utilisation refers to.
    assert all(0 < trial["mfu"] < 0.01 for trial in measured)


def test_a_part_of_the_tables_grid_can_be_searched(tmp_path: Path) -> None:
    overrides = ("params.micro_batch.choices=[1, 4]", "params.layers_per_unit=null")
    result = search(tmp_path, trials=20, overrides=overrides)
    assert len(result.contents.trials) == 8


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("nowhere", "unknown launcher 'nowhere'"),
        ("replay", "needs the table"),
        ("replay=missing.jsonl", "there is no table"),
        ("local=7", "takes nothing"),
    ],
)
def test_a_wrong_launcher_ends_with_the_exit_code_of_wrong_input(
    launcher: str, words: str, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["search", "--space", str(GRID), "--launcher", launcher]
    assert main(arguments) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_command_that_resumes_names_the_launcher(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.cli.search import _resume_words

    monkeypatch.setattr(sys, "argv", ["autotune"])
    request = SearchRequest(space="s.yaml", trials=3, launcher="replay=t.jsonl", anchors=False)
    assert _resume_words(request)[1:] == (
        "search", "--space", "s.yaml", "--trials", "3", "--launcher=replay=t.jsonl", "--no-anchors",
    )  # fmt: skip


def test_nothing_is_said_of_hangs_where_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "unknown_experts", lambda *_: "experts may hang")
    request = SearchRequest(space=str(GRID), runs=tmp_path / "runs", launcher=LAUNCHER)
    assert "experts may hang" not in preflight.prepare(request, staging=tmp_path).notes


def test_a_dry_run_names_the_launcher_and_the_recorded_devices(tmp_path: Path, capsys) -> None:
    runs = str(tmp_path / "runs")
    words = ["search", "--space", str(GRID), "--launcher", LAUNCHER, "--runs", runs, "--dry-run"]
    assert main([*words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["launcher"] == LAUNCHER
    assert plan["topology"] == {"processes": 2, "device": "cpu"}
    assert not any("no GPU is used" in note for note in plan["notes"])
