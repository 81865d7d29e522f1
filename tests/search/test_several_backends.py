"""The backend itself is tuned: a choice of the sampler whose knobs live under it alone."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import Act, Bench

from autotune.contract.folder import StudyFolder
from autotune.contract.plan import Plan, Topology
from autotune.errors import NothingFeasibleError
from autotune.report.document import build
from autotune.search import fitting, history
from autotune.search.devices import Device, Devices
from autotune.search.preflight import Prepared, prepare
from autotune.search.request import SearchRequest
from autotune.search.workload import make_workload
from autotune.space.loader import parse_space
from autotune.space.search_space import SearchSpace

GIB = 1024**3
SPACE = """
version: 1
backend: [zero3, fsdp2, ddp]
workload: {model: qwen3-tiny, global_batch: 16, data: {lengths: ultrachat-like, max_length: 64}}
topology: {processes: 2}
baseline: {backend: fsdp2, micro_batch: 2}
params:
  micro_batch: {choices: [1, 2, 4, 8]}
  zero3.overlap_comm: {choices: [true, false]}
  zero3.stage3_prefetch_bucket_size:
    {type: int, low: 1e5, high: 1e8, log: true, when: zero3.overlap_comm == true}
  reshard_after_forward: {choices: [true, false]}
  ddp.bucket_cap_mb: {type: int, low: 1, high: 100, log: true}
  ddp.static_graph: {choices: [false, true]}
"""
SPEED = {"zero3": 3.0, "fsdp2": 2.0, "ddp": 1.0}


def by_backend(plan: Plan) -> Act:
    """DDP is fastest, and faster with large buckets and cuts."""
    rows = plan.config["workload.micro_batch"]
    bucket = plan.config.get("ddp.bucket_cap_mb", 100)
    return Act(s_per_it=SPEED[plan.backend] * (1.0 + 1.0 / rows + 0.1 / bucket))


def space_on(processes: int = 2, device: Any = "cpu", text: str = SPACE) -> SearchSpace:
    place = Topology(processes=processes, device=device, devices_per_node=processes)
    return parse_space(text, file="space.yaml").on(place)


def test_the_fastest_engine_is_found_and_knobs_stay_with_their_owner(bench: Bench) -> None:
    """BUG-017"""
    result = bench.search(by_backend, space=SPACE, trials=20)
    assert result.verdict.verdict == "faster"
    best = result.contents.trial(result.verdict.best_trial or 0)
    assert best is not None
    assert best.header.backend == "ddp"
    assert {trial.header.backend for trial in result.contents.trials} == set(SPEED)
    assert result.contents.trials[0].header.backend == "fsdp2"
    keys = [trial.header.key for trial in result.contents.trials]
    assert len(keys) == len(set(keys)) == 20
    foreign = {
        "zero3.overlap_comm",
        "reshard_after_forward",
        "ddp.bucket_cap_mb",
        "ddp.static_graph",
    }
    own = {
        "zero3": {"zero3.overlap_comm"},
        "fsdp2": {"reshard_after_forward"},
        "ddp": {"ddp.bucket_cap_mb", "ddp.static_graph"},
    }
    for trial in result.contents.trials:
        backend, params = trial.header.backend, trial.header.params
        assert params["backend"] == backend
        assert params.keys() & foreign == own[backend]
        prefetch = "zero3.stage3_prefetch_bucket_size" in params
        assert prefetch == (params.get("zero3.overlap_comm") is True)
        owners = {name.partition(".")[0] for name in trial.header.config}
        assert owners == {backend, "workload", "kernel"}
        assert not (params.get("ddp.static_graph") and params["micro_batch"] != 8)
    assert bench.launcher is not None
    for plan in bench.launcher.plans:
        assert {name.partition(".")[0] for name in plan.verify} <= {plan.backend, "workload"}


def test_the_report_names_the_backend_of_every_trial(bench: Bench) -> None:
    result = bench.search(by_backend, space=SPACE, trials=12)
    document = build(result.contents)
    assert document["baseline"]["params"]["backend"] == "fsdp2"
    assert document["best"]["params"]["backend"] == "ddp"
    assert "ddp.bucket_cap_mb" in document["best"]["params"]
    for trial in document["trials"]:
        assert trial["params"]["backend"] in SPEED


def test_every_engine_has_been_tried_after_the_first_anchors(bench: Bench) -> None:
    result = bench.search(by_backend, space=SPACE, trials=4)
    origins = [trial.header.origin for trial in result.contents.trials]
    assert origins[0] == "baseline"
    assert all(origin.startswith("anchor:") for origin in origins[1:])
    assert {trial.header.backend for trial in result.contents.trials} == set(SPEED)


def test_a_study_of_one_engine_goes_on_over_all_of_them(bench: Bench) -> None:
    one = SPACE.replace("[zero3, fsdp2, ddp]", "fsdp2").replace("backend: fsdp2, micro", "micro")
    bench.search(by_backend, space=one, trials=4)
    result = bench.search(by_backend, space=SPACE, trials=10)
    assert 'backend: ["fsdp2"] -> ["ddp","fsdp2","zero3"]' in bench.messages()
    assert len(result.contents.trials) == 10
    informing = history.observations(result.contents, space_on())
    assert {one.assignment["backend"] for one in informing} >= {"fsdp2"}
    assert len(informing) >= 9
    best = result.contents.trial(result.verdict.best_trial or 0)
    assert best is not None
    assert best.header.backend == "ddp"


def test_an_interrupted_study_of_several_engines_goes_on(bench: Bench) -> None:
    whole = bench.search(by_backend, space=SPACE, trials=11)
    keys = [trial.header.key for trial in whole.contents.trials]
    again = Bench(bench.file.parent / "again")
    again.file.parent.mkdir()
    again.search(by_backend, space=SPACE, trials=6)
    result = again.search(by_backend, space=SPACE, trials=11)
    assert [trial.header.key for trial in result.contents.trials] == keys
    assert "the space changed" not in again.messages()


def test_copies_that_cannot_fit_are_dropped_with_their_reason(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes, and room for one and a half copies."""
    need = fitting.least_memory_bytes(make_workload(space_on(), data_folder=bench.file.parent))
    monkeypatch.setattr(fitting.hostmemory, "total_bytes", lambda: int(1.5 * need))
    result = bench.search(by_backend, space=SPACE, trials=8)
    assert {trial.header.backend for trial in result.contents.trials} == {"zero3", "fsdp2"}
    prepared = _prepare(bench)
    [gone] = [one for one in prepared.space.dropped if one.param == "backend"]
    assert gone.value == "ddp"
    assert "each process holds all of qwen3-tiny" in gone.reason
    assert any(note.startswith("backend: 'ddp' is left out") for note in prepared.notes)
    assert not any("ddp" in one.name for one in prepared.anchors)
    # The file says the same, so the study does not change when the machine does.
    assert prepared.space.fingerprint == space_on().fingerprint


def test_one_small_device_is_enough_to_drop_it() -> None:
    space = space_on(device="cuda")
    workload = make_workload(space, data_folder=None)
    need = fitting.least_memory_bytes(workload)
    devices = [Device(name="H200", memory_bytes=room) for room in (need * 2, need - 1)]
    kept = fitting.fitting(space, workload, space.topology, Devices(found=tuple(devices)))
    assert kept.backends == ("zero3", "fsdp2")
    assert {param.owner for param in kept.params} == {"workload", "zero3", "fsdp2"}
    large = Devices(found=(devices[0], devices[0]))
    assert fitting.fitting(space, workload, space.topology, large) is space


def test_optimizer_state_of_bf16_weights_is_half_as_large() -> None:
    """As FSDP2 holds it: 2 bytes a weight, as many for its gradient, and two moments of 2."""
    formats = "{compute: bf16, master: bf16, accumulate: fp32, reduce: fp32}"
    text = SPACE.replace("[zero3, fsdp2, ddp]", "[fsdp2]").partition("  zero3.")[0]
    text = text.replace("qwen3-tiny,", f"qwen3-tiny, precision: {formats},")
    space = space_on(text=text, device="cuda")
    workload = make_workload(space, data_folder=None)
    assert fitting.least_memory_bytes(workload) == 8 * workload.model.num_parameters
    devices = (Device(name="H200", memory_bytes=5 * workload.model.num_parameters),) * 2
    assert fitting.fitting(space, workload, space.topology, Devices(found=devices)) is space


def test_a_baseline_that_cannot_fit_ends_the_search(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = fitting.least_memory_bytes(make_workload(space_on(), data_folder=bench.file.parent))
    monkeypatch.setattr(fitting.hostmemory, "total_bytes", lambda: int(1.5 * need))
    text = SPACE.replace("backend: fsdp2, micro", "backend: ddp, micro")
    with pytest.raises(NothingFeasibleError, match="ddp cannot be the baseline here: each process"):
        bench.search(by_backend, space=text, trials=3)
    assert not StudyFolder.of(bench.runs, "s").path.exists()


def _prepare(bench: Bench) -> Prepared:
    staging = bench.file.parent / "staging"
    staging.mkdir()
    return prepare(SearchRequest(space=str(bench.file), runs=bench.runs), staging=staging)


STAGED = SPACE.replace("[zero3, fsdp2, ddp]", "[deepspeed, fsdp2]").replace(
    "  zero3.overlap_comm", "  zero_stage: {choices: [1, 2, 3]}\n  zero3.overlap_comm"
)


@pytest.mark.parametrize("room", [1, 2, 3])
def test_zero_stages_that_cannot_fit_are_left_out(room: int) -> None:
    """Stage 2 keeps all weights on every process, stage 1 all gradients too."""
    space = space_on(text=STAGED, device="cuda")
    workload = make_workload(space, data_folder=None)
    one, two, three = (fitting.stage_memory_bytes(stage, workload, 2) for stage in (1, 2, 3))
    assert one > two > three
    assert three == fitting.least_memory_bytes(workload) / 2
    least = {1: one, 2: two, 3: three}[room]
    devices = [Device(name="H200", memory_bytes=int(memory) + 1) for memory in (2 * one, least)]
    kept = fitting.fitting(space, workload, space.topology, Devices(found=tuple(devices)))
    (stages,) = [param.domain for param in kept.params if param.name == "zero_stage"]
    assert set(stages.values) == set(range(room, 4))
    gone = {drop.value: drop.reason for drop in kept.dropped if drop.param == "zero_stage"}
    assert set(gone) == set(range(1, room))
    assert all("each process holds all weights" in reason for reason in gone.values())


def test_a_baseline_at_a_stage_that_cannot_fit_ends_the_search() -> None:
    text = STAGED.replace("backend: fsdp2, micro", "backend: deepspeed, zero_stage: 1, micro")
    space = space_on(text=text, device="cuda")
    workload = make_workload(space, data_folder=None)
    room = int(fitting.stage_memory_bytes(2, workload, 2))
    devices = Devices(found=(Device(name="H200", memory_bytes=room),) * 2)
    with pytest.raises(NothingFeasibleError, match="zero_stage 1 cannot be the baseline here"):
        fitting.fitting(space, workload, space.topology, devices)


def test_offload_may_make_a_stage_fit() -> None:
    allowed = "search: {allow: [offload_optimizer]}\n"
    text = STAGED.replace("backend: fsdp2", "backend: deepspeed, offload_optimizer: cpu")
    text += "  offload_optimizer: {choices: [none, cpu]}\n" + allowed
    space = space_on(text=text, device="cuda")
    workload = make_workload(space, data_folder=None)
    weights = int(fitting.stage_memory_bytes(1, workload, 2, offloaded=True))
    assert weights == workload.model.num_parameters * 4
    devices = Devices(found=(Device(name="H200", memory_bytes=weights + 1),) * 2)
    kept = fitting.fitting(space, workload, space.topology, devices)
    (stages,) = [param.domain for param in kept.params if param.name == "zero_stage"]
    assert set(stages.values) == {1, 2, 3}


def test_offload_of_one_engine_keeps_no_other() -> None:
    """Where nothing but offload fits, an engine that cannot offload has nothing to try."""
    allowed = "search: {allow: [offload_optimizer]}\n"
    text = SPACE.replace("[zero3, fsdp2, ddp]", "[zero3, fsdp2]").replace(
        "backend: fsdp2, micro", "backend: zero3, zero3.offload_optimizer: cpu, micro"
    )
    space = space_on(text=text.partition("  ddp.")[0] + allowed, device="cuda")
    workload = make_workload(space, data_folder=None)
    room = int(fitting.least_memory_bytes(workload) / 2) - 1
    devices = Devices(found=(Device(name="H200", memory_bytes=room),) * 2)
    kept = fitting.fitting(space, workload, space.topology, devices)
    assert kept.backends == ("zero3",)
    (gone,) = kept.dropped
    assert "over all processes" in gone.reason
    assert gone.reason.endswith("and nothing is offloaded")


def test_without_any_stage_that_fits_the_engine_is_left_out() -> None:
    text = STAGED.replace("choices: [1, 2, 3]", "choices: [1, 2]")
    space = space_on(text=text, device="cuda")
    workload = make_workload(space, data_folder=None)
    room = int(fitting.stage_memory_bytes(3, workload, 2)) + 1
    devices = Devices(found=(Device(name="H200", memory_bytes=room),) * 2)
    kept = fitting.fitting(space, workload, space.topology, devices)
    assert kept.backends == ("fsdp2",)
