"""Confirmed bests of other studies are tried before the sampler proposes."""

from __future__ import annotations

import dataclasses

import pytest
from scripted import SPACE, Bench, by_micro_batch
from study_factory import StudyBuilder, make_study, measured

from autotune.contract.plan import Topology
from autotune.search.earlier import MAX_EARLIER, earlier_bests

TOPOLOGY = Topology(processes=2, device="cpu", devices_per_node=2)


def other(bench: Bench, name: str, *, word: str = "faster", at: float = 10.0, **workload) -> None:
    model = {"name": "qwen3-tiny", "family": "qwen3"} | workload
    record = make_study(name, workload={"model": model, "global_batch": 8}, updated_at=at)
    study = StudyBuilder(bench.runs, record)
    study.trial(measured(0.8))
    config = {"zero3.reduce_bucket_size": 123_456, "workload.micro_batch": 4}
    best = study.trial(measured(0.4), config=config | {"workload.max_tokens": None})
    study.verdict(word, best if word == "faster" else 0, ratio=2.0, low=1.9, high=2.1)
    study.store.close()


def test_the_best_of_another_study_is_an_anchor(bench: Bench) -> None:
    other(bench, "older")
    result = bench.search(by_micro_batch, trials=6)
    anchors = {
        t.header.origin: t.header.params
        for t in result.contents.trials
        if t.header.origin.startswith("anchor:")
    }
    assert anchors["anchor:earlier:older"] == {"micro_batch": 4, "reduce_bucket_size": 123_456}


def test_it_is_moved_into_the_space(bench: Bench) -> None:
    other(bench, "older")
    space = SPACE.replace("[1, 2, 4, 8]", "[1, 2]").replace("low: 1e5", "low: 1e6")
    result = bench.search(by_micro_batch, trials=6, space=space)
    [found] = [t for t in result.contents.trials if t.header.origin == "anchor:earlier:older"]
    assert found.header.params == {"micro_batch": 2, "reduce_bucket_size": 1_000_000}
    assert found.header.inside_space


def test_without_anchors_it_is_not_tried(bench: Bench) -> None:
    other(bench, "older")
    result = bench.search(by_micro_batch, trials=3, anchors=False)
    assert [t.header.origin for t in result.contents.trials] == ["baseline", "proposal", "proposal"]


def test_only_gains_of_the_same_family_count_the_latest_first(bench: Bench) -> None:
    for number in range(MAX_EARLIER + 1):
        other(bench, f"study-{number}", at=100.0 + number)
    other(bench, "no-gain", word="keep_baseline", at=500.0)
    other(bench, "other-family", family="qwen3_moe", at=500.0)
    (bench.runs / "broken").mkdir()
    (bench.runs / "broken" / "verdict.json").write_text("{")
    bench.search(by_micro_batch, trials=1)
    assert bench.launcher is not None
    workload = bench.launcher.plans[0].workload
    found = earlier_bests(bench.runs, but="study-3", workload=workload, topology=TOPOLOGY)
    assert [one.study for one in found] == ["study-2", "study-1", "study-0"]
    assert found[0].values["zero3.reduce_bucket_size"] == 123_456
    cuda = dataclasses.replace(TOPOLOGY, device="cuda")
    assert earlier_bests(bench.runs, but="", workload=workload, topology=cuda) == ()


def test_no_runs_folder_has_no_earlier_studies(bench: Bench) -> None:
    bench.search(by_micro_batch, trials=1)
    assert bench.launcher is not None
    workload = bench.launcher.plans[0].workload
    nowhere = bench.runs / "nowhere"
    assert earlier_bests(nowhere, but="", workload=workload, topology=TOPOLOGY) == ()
    with pytest.raises(FileNotFoundError):
        nowhere.stat()
