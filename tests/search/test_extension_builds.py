"""BUG-037: what an engine compiles at first use is built once, before trial 0, or left out."""

from __future__ import annotations

import dataclasses

import pytest
from scripted import Act, Bench

from autotune.backends.deepspeed import Zero3Backend
from autotune.contract.plan import Plan, Topology
from autotune.errors import EnvironmentFault, InputError, InterruptedSearch
from autotune.knobs import zero3
from autotune.knobs.knob import Need
from autotune.search import available, extensions, launching
from autotune.search.interrupts import Interrupts
from autotune.search.planning import Planner
from autotune.search.workload import make_workload
from autotune.space.loader import parse_space

CPU = Topology(processes=2, device="cpu", devices_per_node=2)
CUDA = Topology(processes=2, device="cuda", devices_per_node=2)
HEAD = """
version: 1
backend: {}
workload: {{model: qwen3-tiny, global_batch: 8, data: {{lengths: ultrachat-like, max_length: 64}}}}
topology: {{processes: 2}}
"""
SPACE = (
    HEAD.format("zero3")
    + """
params:
  allgather_sequential: {choices: [false, true]}
  memory_efficient_linear: {choices: [true, false]}
  stage3_prefetch_bucket_size: {type: int, low: 1e5, high: 5e8, log: true}
"""
)
PLANTED = {"allgather_sequential": "X", "memory_efficient_linear": "X"}
"""Knob to the extension that it is made to need."""


@pytest.fixture(autouse=True)
def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two settings that need no GPU need one extension."""
    table = tuple(
        dataclasses.replace(knob, needs=(Need(kind="compiler", name=PLANTED[knob.name]),))
        if knob.name in PLANTED
        else knob
        for knob in zero3.KNOBS
    )
    monkeypatch.setattr(Zero3Backend, "knobs", table)
    monkeypatch.setattr(available, "_has_compiler", lambda: True)
    monkeypatch.setattr(launching, "BACK_OFF_S", 0.0)


def run(bench: Bench, build=lambda plan: Act(), *, space: str = SPACE, trials: int = 9, **more):
    def prepare(launcher) -> None:
        launcher.extension_script = build

    return bench.search(lambda plan: Act(), space=space, trials=trials, prepare=prepare, **more)


def built(bench: Bench) -> list[Plan]:
    assert bench.launcher is not None
    return bench.launcher.extension_plans


def launched(bench: Bench) -> set[tuple[bool, bool]]:
    assert bench.launcher is not None
    return {
        (
            plan.config["zero3.allgather_sequential"],
            plan.config["zero3.memory_efficient_linear"],
        )
        for plan in bench.launcher.trials()
    }


def test_an_extension_of_two_settings_is_built_once_and_before_any_trial(bench: Bench) -> None:
    def build(plan: Plan) -> Act:
        assert bench.launcher is not None
        assert bench.launcher.plans == []
        return Act()

    run(bench, build)
    (plan,) = built(bench)
    assert plan.purpose == "extension"
    assert plan.topology.processes == 1
    assert launched(bench) == {(a, b) for a in (False, True) for b in (False, True)}
    assert "the extension X was built in 61 s" in bench.messages()
    folder = bench.runs / "s" / "extensions" / "00000" / "attempt-0"
    assert (folder / "plan.json").exists()
    assert (folder / "rank-0.json").exists()


def test_no_limit_of_a_trial_holds_for_a_build(bench: Bench) -> None:
    run(bench, space=SPACE + "search: {max_trial_time: 10s}\n", trials=1)
    (plan,) = built(bench)
    assert plan.deadlines.total_s == 3600.0
    assert plan.deadlines.phase_s == {"launch": 60.0, "init": 120.0}
    assert bench.launcher is not None
    assert bench.launcher.plans[0].deadlines.total_s == 10.0


def test_what_is_there_is_loaded_in_each_search_and_said_to_be_there(bench: Bench) -> None:
    run(bench, trials=2)
    run(bench, lambda plan: Act(compiled=False), trials=3)
    assert len(built(bench)) == 1
    assert built(bench)[0].attempt == 1
    assert "the extension X was there, and loaded in 61.0 s" in bench.messages()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (Act(error="X cannot be built: x.cu:3: error: no", kind="incompatible"), "x.cu:3: error"),
        (Act(record_text="{"), "record is damaged"),
    ],
)
def test_what_cannot_be_built_is_left_out_with_the_compilers_words(
    bench: Bench, act: Act, words: str
) -> None:
    run(bench, lambda plan: act)
    assert len(built(bench)) == 1
    assert launched(bench) == {(False, True)}
    said = bench.messages()
    assert "zero3.allgather_sequential: true is left out: " in said
    assert "zero3.memory_efficient_linear: false is left out: " in said
    assert words in said
    assert "extensions/00000/attempt-0/rank-0.log" in said


@pytest.mark.parametrize("section", ["fixed", "baseline"])
def test_what_the_user_has_stated_is_an_error_with_its_place(bench: Bench, section: str) -> None:
    space = SPACE.replace("params:", f"{section}:\n  allgather_sequential: true\nparams:").replace(
        "  allgather_sequential: {choices: [false, true]}\n", ""
    )
    failed = Act(error="X cannot be built: c++: no", kind="incompatible")
    match = r"space.yaml:8:\d+: allgather_sequential true cannot be: X cannot be built: c\+\+: no"
    with pytest.raises(InputError, match=match):
        run(bench, lambda plan: failed, space=space)
    assert bench.launcher is not None
    assert bench.launcher.plans == []
    assert not (bench.runs / "s").exists()


def test_what_is_fixed_of_another_backend_than_the_baselines_is_an_error_too(bench: Bench) -> None:
    space = HEAD.format("[fsdp2, zero3]") + (
        "baseline: {backend: fsdp2}\n"
        "fixed: {zero3.allgather_sequential: true}\n"
        "params: {micro_batch: {choices: [1, 2]}}\n"
    )
    failed = Act(error="X cannot be built: c++: no", kind="incompatible")
    with pytest.raises(InputError, match=r"yaml:7:\d+: allgather_sequential true cannot be: X"):
        run(bench, lambda plan: failed, space=space)
    assert bench.launcher is not None
    assert bench.launcher.plans == []


def test_a_fault_of_the_machine_is_tried_again_once(bench: Bench) -> None:
    full = Act(error="No space left on device", kind="infra", phase="build")
    acts = [full, Act()]
    run(bench, lambda plan: acts.pop(0))
    assert [plan.attempt for plan in built(bench)] == [0, 1]
    assert len(launched(bench)) == 4
    assert "X could not be built: RuntimeError: No space left on device; tried" in bench.messages()
    with pytest.raises(EnvironmentFault, match="X could not be built: .*No space left") as caught:
        run(bench, lambda plan: full, study="other")
    assert caught.value.exit_code == 3
    assert len(built(bench)) == 2


def test_a_request_to_stop_ends_a_build_and_the_search(bench: Bench) -> None:
    interrupts = Interrupts()

    def build(plan: Plan) -> Act:
        interrupts.request()
        return Act(forever=True)

    with pytest.raises(InterruptedSearch, match="before the first trial"):
        run(bench, build, interrupts=interrupts)
    assert bench.launcher is not None
    assert bench.launcher.closed == 1
    assert bench.launcher.plans == []


def test_a_space_that_needs_none_builds_none(bench: Bench) -> None:
    space = SPACE.replace("[false, true]", "[false]").replace("[true, false]", "[true]")
    run(bench, space=space, trials=2)
    assert built(bench) == []
    assert "extension" not in bench.messages()


def test_without_a_device_deepcompile_is_dead_and_nothing_is_built(bench: Bench) -> None:
    space = HEAD.format("zero3") + (
        "fixed: {deepcompile: true}\nparams: {stage3_prefetch_bucket_size: {choices: [1, 2]}}\n"
    )
    run(bench, space=space, trials=2)
    assert built(bench) == []


def uses(text: str, topology: Topology) -> list[tuple[str, object, str, object]]:
    loaded = parse_space(text, file="space.yaml")
    space = loaded.on(topology)
    workload = make_workload(space, data_folder=None)
    planner = Planner(study="s", space=space, workload=workload, topology=topology)
    return [
        (use.knob, use.value, use.extension, use.config.values.get("deepspeed.zero_stage"))
        for use in extensions.uses(space, planner)
    ]


BOTH = """
params:
  zero3.deepcompile: {choices: [false, true]}
  zero3.zero_quantized_weights: {choices: [false, true]}
search: {allow: [zero_quantized_weights, zero_quantized_gradients]}
"""


def test_on_gpus_each_value_names_its_extension() -> None:
    both = [
        ("zero3.zero_quantized_weights", True, "QuantizerBuilder", None),
        ("zero3.deepcompile", True, "DeepCompileBuilder", None),
    ]
    assert uses(HEAD.format("zero3") + BOTH, CUDA) == both
    fsdp2_first = HEAD.format("[fsdp2, zero3]") + BOTH
    assert uses(fsdp2_first, CUDA) == both


def test_what_is_refused_everywhere_needs_none() -> None:
    text = HEAD.format("zero3") + BOTH.replace("zero3.deepcompile", "zero_quantized_gradients")
    assert [use[0] for use in uses(text, CUDA)] == ["zero3.zero_quantized_weights"]


@pytest.mark.parametrize(("stages", "found"), [("[1, 2, 3]", 3), ("[1, 2]", None)])
def test_a_value_that_is_dead_in_the_baseline_may_count_elsewhere(stages: str, found) -> None:
    text = HEAD.format("deepspeed") + (
        "baseline: {zero_stage: 2}\n"
        f"params: {{zero_stage: {{choices: {stages}}}, deepcompile: {{choices: [false, true]}}}}\n"
    )
    expected = [("deepspeed.deepcompile", True, "DeepCompileBuilder", 3)] if found else []
    assert uses(text, CUDA) == expected
    assert uses(text, CPU) == []
