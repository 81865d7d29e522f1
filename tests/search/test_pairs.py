"""Settings that fail together are learnt from one launch (BUG-036)."""

from __future__ import annotations

import pytest
from scripted import Act, Bench

from autotune.contract import errortexts
from autotune.contract.failures import FailureKind
from autotune.contract.plan import Plan

SPACE = """
version: 1
backend: zero3
workload: {model: qwen3-tiny, global_batch: 16, data: {lengths: ultrachat-like, max_length: 64}}
topology: {processes: 2}
params:
  micro_batch: {choices: [1, 2, 4]}
  activation_checkpointing: {choices: [none, full, selective]}
  use_reentrant: {choices: [true, false]}
"""
SHAPES = (
    "torch.utils.checkpoint: Recomputed values for the following tensors have different metadata "
    "than during the forward pass.\ntensor at position 3: saved metadata: {'shape': [64, 32]}"
)

GRAPH_BREAK = "Unsupported method call\n  Explanation: Dynamo does not know how to trace it"
SELECTIVE = (
    "aten.mm.default encountered during backward but not found in storage. This can happen",
    "aten.mm.default invocation index 2 encountered during backward but not found in storage.",
    # Before torch counted calls.
    "aten.mm.default encountered during backward, but not found in storage",
    "Trying to backward an extra time. You are only allowed to backward once on any region "
    "computed under selective activation checkpoint.",
)


def newer_mode_fails(plan: Plan) -> Act:
    """As frozen weights under ZeRO-3: only the mode that is not reentrant meets other shapes."""
    mode = plan.config["workload.activation_checkpointing"]
    if mode == "none" or plan.config["workload.use_reentrant"]:
        return Act()
    return Act(error=SHAPES, error_type="torch.utils.checkpoint.CheckpointError", phase="check")


def test_a_failing_pair_is_named_learnt_once_and_the_other_mode_is_tried(bench: Bench) -> None:
    result = bench.search(newer_mode_fails, space=SPACE, trials=30, anchors=False)
    failures = [
        trial.outcome.failure
        for trial in result.contents.trials
        if trial.outcome is not None and trial.outcome.failure is not None
    ]
    assert len(failures) == 1
    assert failures[0].kind == "incompatible"
    assert failures[0].combination == {"workload.use_reentrant": False}
    assert failures[0].reason.startswith("use_reentrant=false does not work under zero3: ")
    measured = {
        (plan.config["workload.activation_checkpointing"], plan.config["workload.use_reentrant"])
        for plan in bench.launcher.trials()
    }
    assert ("full", True) in measured
    # 3 cuts without recomputation (one of them the baseline) and 3 in the working mode.
    assert len(bench.launcher.trials()) == 6 + 1
    assert "use_reentrant=false: incompatible in trial" in bench.messages()


def test_a_pair_of_settings_rules_out_only_configurations_that_have_both(bench: Bench) -> None:
    space = SPACE.replace("backend: zero3", "backend: fsdp2").replace(
        "  use_reentrant: {choices: [true, false]}", "  kernel.compile: {choices: [none, layer]}"
    )

    def script(plan: Plan) -> Act:
        both = plan.config["kernel.compile"] == "layer"
        if both and plan.config["workload.activation_checkpointing"] != "none":
            return Act(error=SHAPES, error_type="torch.utils.checkpoint.CheckpointError")
        return Act()

    result = bench.search(script, space=space, trials=40, anchors=False)
    failed = [trial for trial in result.contents.trials if trial.outcome.failure is not None]
    assert len(failed) == 1
    assert failed[0].outcome.failure.combination == {
        "workload.use_reentrant": False,
        "kernel.compile": "layer",
    }
    reason = failed[0].outcome.failure.reason
    assert "use_reentrant=false, compile=layer do not work together under fsdp2" in reason
    tried = {
        (plan.config["kernel.compile"], plan.config["workload.activation_checkpointing"])
        for plan in bench.launcher.trials()
    }
    assert {("layer", "none"), ("none", "full"), ("none", "selective")} <= tried


def test_what_fails_where_weights_are_split_is_tried_where_they_are_whole(bench: Bench) -> None:
    """As selective recomputation of gated delta nets, at ZeRO's stage 3 and not at stage 2."""
    space = SPACE.replace("backend: zero3", "backend: deepspeed").replace(
        "  use_reentrant: {choices: [true, false]}", "  zero_stage: {choices: [2, 3]}"
    )

    def script(plan: Plan) -> Act:
        split = plan.config["deepspeed.zero_stage"] == 3
        selective = plan.config["workload.activation_checkpointing"] == "selective"
        return Act(error=SELECTIVE[0]) if split and selective else Act()

    result = bench.search(script, space=space, trials=40, anchors=False)
    (failure,) = [t.outcome.failure for t in result.contents.trials if t.outcome.failure]
    assert failure.combination == {
        "workload.activation_checkpointing": "selective",
        "deepspeed.zero_stage": 3,
    }
    # 3 cuts of 6 combinations, less the failing one's other two.
    assert len(bench.launcher.trials()) == 16


def test_a_layer_that_the_compiler_cannot_take_is_launched_once(bench: Bench) -> None:
    """BUG-054: with other settings the layer has other code, and is tried."""
    space = SPACE.replace("backend: zero3", "backend: fsdp2").replace(
        "  use_reentrant: {choices: [true, false]}", "  kernel.compile: {choices: [none, layer]}"
    )

    def script(plan: Plan) -> Act:
        recomputes = plan.config["workload.activation_checkpointing"] == "full"
        if plan.config["kernel.compile"] == "layer" and recomputes:
            # The rank says the kind, which it has from the class's bases.
            kind: FailureKind = "incompatible"
            return Act(error=GRAPH_BREAK, error_type="torch._dynamo.exc.Unsupported", kind=kind)
        return Act()

    result = bench.search(script, space=space, trials=40, anchors=False)
    (failure,) = [t.outcome.failure for t in result.contents.trials if t.outcome.failure]
    assert failure.kind == "incompatible"
    assert failure.combination == {
        "kernel.compile": "layer",
        "workload.activation_checkpointing": "full",
    }
    assert failure.reason.startswith(
        "compile=layer, activation_checkpointing=full do not work together under fsdp2: "
    )
    # 3 cuts of 6 combinations, less the failing one's other two.
    assert len(bench.launcher.trials()) == 16


def test_a_compiler_without_memory_or_with_too_many_shapes_names_no_settings(bench: Bench) -> None:
    space = SPACE.replace("backend: zero3", "backend: fsdp2").replace(
        "  use_reentrant: {choices: [true, false]}", "  kernel.compile: {choices: [none, layer]}"
    )
    errors = [
        ("CUDA out of memory", "torch._dynamo.exc.BackendCompilerFailed"),
        ("recompile_limit reached", "torch._dynamo.exc.FailOnRecompileLimitHit"),
    ]
    again = iter(errors)

    def script(plan: Plan) -> Act:
        if plan.config["kernel.compile"] == "layer" and (found := next(again, None)):
            return Act(error=found[0], error_type=found[1])
        return Act()

    result = bench.search(script, space=space, trials=40, anchors=False)
    failures = [t.outcome.failure for t in result.contents.trials if t.outcome.failure]
    assert [one.kind for one in failures] == ["oom_device", "incompatible"]
    assert all(one.combination == {} for one in failures)


def test_a_search_that_goes_on_remembers(bench: Bench) -> None:
    bench.search(newer_mode_fails, space=SPACE, trials=30, anchors=False)
    wider = SPACE.replace("[1, 2, 4]", "[1, 2, 4, 8]")
    bench.search(newer_mode_fails, space=wider, trials=60, anchors=False)
    assert not any(
        plan.config["workload.activation_checkpointing"] != "none"
        and not plan.config["workload.use_reentrant"]
        for plan in bench.launcher.trials()
    )


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({"CheckpointError", "RuntimeError"}, "anything"),
        ({"RuntimeError"}, SHAPES),
        ((), "torch.utils.checkpoint: A different number of tensors was saved during"),
        *(({"RuntimeError"}, text) for text in SELECTIVE),
    ],
)
def test_what_recomputation_meets_is_a_refusal_and_no_crash(names, text) -> None:
    assert errortexts.kind_of(names, text) == "incompatible"


@pytest.mark.parametrize("text", SELECTIVE)
def test_selective_recomputation_that_meets_other_tensors_is_launched_once(
    text: str, bench: Bench
) -> None:
    def script(plan: Plan) -> Act:
        selective = plan.config["workload.activation_checkpointing"] == "selective"
        return Act(error=text, phase="check") if selective else Act()

    space = SPACE.replace("  use_reentrant: {choices: [true, false]}\n", "")
    result = bench.search(script, space=space, trials=30, anchors=False)
    (failure,) = [t.outcome.failure for t in result.contents.trials if t.outcome.failure]
    assert failure.kind == "incompatible"
    assert failure.combination == {"workload.activation_checkpointing": "selective"}
    assert all(len(trial.attempts) == 1 for trial in result.contents.trials)


def test_other_errors_name_no_settings(bench: Bench) -> None:
    def script(plan: Plan) -> Act:
        failing = plan.config["workload.micro_batch"] == 4
        return Act(error="CUDA error: an illegal memory access") if failing else Act()

    result = bench.search(script, space=SPACE, trials=30, anchors=False)
    failures = [t.outcome.failure for t in result.contents.trials if t.outcome.failure]
    assert failures
    assert all(failure.combination == {} for failure in failures)
