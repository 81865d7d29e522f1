"""BUG-052 and BUG-054: what cannot run or is wrong here is left out before trial 0, and said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripted import Act, Bench

from autotune.contract.plan import Plan
from autotune.errors import EnvironmentFault, InputError, InterruptedSearch
from autotune.search.interrupts import Interrupts

SPACE = """
version: 1
backend: fsdp2
workload: {model: qwen3-tiny, global_batch: 8, data: {lengths: ultrachat-like, max_length: 64}}
topology: {processes: 2}
params:
  kernel.compile: {choices: [none, layer]}
  kernel.attention: {choices: [sdpa, flash_attention_2]}
  kernel.loss: {choices: [torch, chunked, liger]}
  kernel.linear_attention: {choices: [torch, fla]}
"""
SIX = 6


def kernels_of(plan: Plan) -> tuple[str, str]:
    return plan.config["kernel.compile"], plan.config["kernel.loss"]


def run(bench: Bench, check=lambda plan: Act(), *, space: str = SPACE, trials: int = SIX, **more):
    def prepare(launcher) -> None:
        launcher.kernel_script = check

    return bench.search(lambda plan: Act(), space=space, trials=trials, prepare=prepare, **more)


def checked(bench: Bench) -> list[str]:
    assert bench.launcher is not None
    return [
        f"{plan.verify[0]}={plan.config[plan.verify[0]]}" for plan in bench.launcher.kernel_plans
    ]


def launched(bench: Bench) -> set[tuple[str, str]]:
    assert bench.launcher is not None
    return {kernels_of(plan) for plan in bench.launcher.trials()}


def wrong(knob: str):
    return lambda plan: Act(kernel_error=0.5 if plan.verify == (knob,) else 1e-6)


def test_each_kernel_that_can_run_is_compared_once_and_then_tried(bench: Bench) -> None:
    run(bench)
    assert checked(bench) == ["kernel.loss=chunked", "kernel.compile=layer"]
    assert launched(bench) == {
        ("none", "torch"), ("none", "chunked"),
        ("layer", "torch"), ("layer", "chunked"),
    }  # fmt: skip
    said = bench.messages()
    assert "'flash_attention_2' is left out: it needs an NVIDIA GPU" in said
    assert "'liger' is left out" in said
    assert "kernel.loss: 'chunked' is compared with its reference" in said
    assert "kernel.compile: 'layer' is compared with its reference" in said
    assert "2 kernels compared" in said
    # The model has no such layers: nothing to compare, and one configuration whatever it says.
    assert "fla" not in " ".join(checked(bench))
    for plan in bench.launcher.kernel_plans:
        assert plan.topology.processes == 1
        assert plan.purpose == "kernel"


def test_a_wrong_kernel_is_left_out_with_its_worst_tensor(bench: Bench) -> None:
    run(bench, wrong("kernel.compile"))
    assert launched(bench) == {("none", "torch"), ("none", "chunked")}
    said = bench.messages()
    assert "kernel.compile: 'layer' is left out: its gradient of lm_head.weight" in said
    assert "is 0.5 off the reference in float32, and 0.0001 is allowed" in said


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (Act(error="ptxas failed", phase="check"), "ptxas failed"),
        (Act(error="x", kind="not_in_effect", phase="check"), "ended in not_in_effect: x"),
        (Act(record_text="{"), "ended in crash"),
    ],
)
def test_a_kernel_that_fails_to_run_is_left_out_too(bench: Bench, act: Act, words) -> None:
    def check(plan: Plan) -> Act:
        return act if plan.verify == ("kernel.loss",) else Act()

    run(bench, check)
    assert launched(bench) == {("none", "torch"), ("layer", "torch")}
    assert "kernel.loss: 'chunked' is left out: comparing it with its reference" in bench.messages()
    assert words in bench.messages()


def test_what_passed_is_not_compared_again(bench: Bench) -> None:
    run(bench, trials=2)
    assert len(checked(bench)) == 2
    run(bench, trials=4)
    assert checked(bench) == []
    run(bench, trials=5, space=SPACE.replace("max_length: 64", "max_length: 128"))
    assert len(checked(bench)) == 2  # other shapes


@pytest.mark.parametrize(
    ("kind", "again"),
    [
        ("incompatible", 0),
        ("not_in_effect", 0),
        ("oom_device", 1),  # somebody else may have held the memory
        ("crash", 1),
        (None, 1),  # no record at all
    ],
)
def test_only_an_end_that_lasts_is_not_compared_again(bench: Bench, kind, again) -> None:
    act = Act(record_text="{") if kind is None else Act(error="x", kind=kind, phase="check")

    def check(plan: Plan) -> Act:
        return act if plan.verify == ("kernel.loss",) else Act()

    run(bench, check, trials=2)
    assert len(checked(bench)) == 2
    run(bench, trials=3)
    assert checked(bench) == ["kernel.loss=chunked"] * again
    ran = {kernels_of(plan)[1] for plan in bench.launcher.trials()}
    assert "chunked" not in ran or again


def test_the_verdict_is_in_the_studys_folder_with_the_versions(bench: Bench) -> None:
    run(bench, wrong("kernel.loss"), trials=2)
    files = sorted((bench.runs / "s" / "kernels").glob("*.json"))
    verdicts = [json.loads(file.read_text()) for file in files]
    by_knob = {one["knob"]: one for one in verdicts}
    assert by_knob["kernel.compile"]["reason"] == ""
    assert by_knob["kernel.compile"]["check"]["versions"]["torch"]
    assert "0.5 off" in by_knob["kernel.loss"]["reason"]
    folder = bench.runs / "s" / by_knob["kernel.loss"]["folder"]
    assert (folder / "plan.json").exists()
    assert (folder / "rank-0.json").exists()


@pytest.mark.parametrize("section", ["fixed", "baseline"])
def test_a_wrong_kernel_that_the_user_has_stated_is_an_error_with_its_place(
    bench: Bench, section: str
) -> None:
    space = SPACE.replace("params:", f"{section}:\n  kernel.loss: chunked\nparams:").replace(
        "  kernel.loss: {choices: [torch, chunked, liger]}\n", ""
    )
    with pytest.raises(InputError, match=r"space.yaml:7:\d+: loss chunked cannot be: its gradient"):
        run(bench, wrong("kernel.loss"), space=space)
    assert bench.launcher is not None
    assert bench.launcher.plans == []
    assert not (bench.runs / "s" / "study.json").exists()
    # The message sends to the log.
    files = (bench.runs / "s" / "kernels").glob("*.json")
    folders = {one["knob"]: one["folder"] for one in map(json.loads, map(Path.read_text, files))}
    assert (bench.runs / "s" / folders["kernel.loss"] / "plan.json").exists()


def test_no_kernel_left_is_an_error_with_its_place(bench: Bench) -> None:
    space = SPACE.replace("[torch, chunked, liger]", "[chunked, liger]")
    with pytest.raises(InputError, match=r"space.yaml:\d+:\d+: no choice of kernel.loss is left"):
        run(bench, wrong("kernel.loss"), space=space)


@pytest.mark.parametrize("section", ["fixed", "baseline"])
def test_a_stated_kernel_that_cannot_run_here_is_an_error_with_its_place(
    bench: Bench, section: str
) -> None:
    space = SPACE.replace("params:", f"{section}:\n  kernel.mlp: liger\nparams:")
    with pytest.raises(InputError, match=r"space.yaml:7:\d+: mlp liger cannot be: it needs an NV"):
        run(bench, space=space)


def test_a_space_of_defaults_compares_nothing(bench: Bench) -> None:
    space = SPACE.partition("params:")[0] + "params:\n  layers_per_unit: {choices: [1, 2]}\n"
    run(bench, space=space, trials=2)
    assert checked(bench) == []
    assert "compared" not in bench.messages()


def test_a_request_to_stop_during_a_comparison_ends_the_search(bench: Bench) -> None:
    interrupts = Interrupts()

    def check(plan: Plan) -> Act:
        interrupts.request()
        return Act(forever=True)

    with pytest.raises(InterruptedSearch, match="before the first trial"):
        run(bench, check, interrupts=interrupts)
    assert bench.launcher is not None
    assert bench.launcher.closed == 1
    assert bench.launcher.plans == []


def test_what_was_compared_before_a_request_to_stop_is_not_compared_again(bench: Bench) -> None:
    interrupts = Interrupts()

    def check(plan: Plan) -> Act:
        if plan.verify == ("kernel.loss",):
            return Act(kernel_error=1e-6)
        interrupts.request()
        return Act(forever=True)

    with pytest.raises(InterruptedSearch, match="before the first trial"):
        run(bench, check, interrupts=interrupts)
    run(bench)
    assert checked(bench) == ["kernel.compile=layer"]


def test_a_machine_that_fails_during_a_comparison_says_nothing_of_the_kernel(bench: Bench) -> None:
    with pytest.raises(EnvironmentFault, match="a kernel could not be checked: .*no route"):
        run(bench, lambda plan: Act(error="no route to the node", kind="infra", phase="init"))


def test_a_dry_run_compares_nothing(bench: Bench, tmp_path: Path) -> None:
    from autotune.search.request import SearchRequest
    from autotune.search.session import dry_run

    bench.file.write_text(SPACE)
    prepared = dry_run(SearchRequest(space=str(bench.file), runs=bench.runs))
    assert any("flash_attention_2" in note for note in prepared.notes)
    assert not bench.runs.exists()
