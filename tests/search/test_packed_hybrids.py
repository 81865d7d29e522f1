"""BUG-049: a hybrid is packed only with kernels that are told where samples end."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from scripted import Act, Bench

from autotune.errors import InputError
from autotune.search import kernels

SPACE = """
version: 1
backend: fsdp2
workload:
  model: qwen3_5-tiny
  global_batch: 8
  data: {lengths: ultrachat-like, max_length: 64}
topology: {processes: 2}
fixed: {max_tokens: 128}
baseline: {batching: padded, kernel.linear_attention: torch, kernel.convolution: torch}
params:
  batching: {choices: [padded, packed]}
  kernel.linear_attention: {choices: [torch, fla]}
  kernel.convolution: {choices: [torch, causal_conv1d, fla]}
"""
RULES, SHORTS = ("torch", "fla"), ("torch", "causal_conv1d", "fla")


@pytest.fixture
def gpu_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which every kernel can run."""
    monkeypatch.setattr(kernels, "unavailable", lambda choice, machine: None)


def launched(bench: Bench) -> set[tuple[str, str, str]]:
    assert bench.launcher is not None
    names = ("workload.batching", "kernel.linear_attention", "kernel.convolution")
    return {tuple(plan.config[name] for name in names) for plan in bench.launcher.plans}


def test_combinations_that_take_no_boundaries_are_never_launched(
    bench: Bench, gpu_host: None
) -> None:
    bench.search(lambda plan: Act(), space=SPACE, trials=20)
    padded = set(itertools.product(["padded"], RULES, SHORTS))
    packed = set(itertools.product(["packed"], ["fla"], ["causal_conv1d", "fla"]))
    assert launched(bench) == padded | packed
    assert "linear attention by torch takes no sequence boundaries" in bench.messages()
    assert "convolution by torch takes no sequence boundaries" in bench.messages()


def test_without_such_kernels_the_choice_is_left_out_with_the_layer_type_named(
    bench: Bench,
) -> None:
    bench.search(lambda plan: Act(), space=SPACE, trials=4)
    assert launched(bench) == {("padded", "torch", "torch")}
    said = bench.messages()
    assert "it needs an NVIDIA GPU" in said
    assert "a hybrid model needs kernels that take sequence boundaries" in said
    assert "linear attention by torch takes no sequence boundaries" in said


def test_a_packed_baseline_without_such_kernels_is_an_error(bench: Bench) -> None:
    space = SPACE.replace("batching: padded", "batching: packed")
    with pytest.raises(InputError, match="linear attention by torch takes no sequence boundaries"):
        bench.search(lambda plan: Act(), space=space)


def test_unsaid_the_knobs_have_what_the_library_binds(bench: Bench, gpu_host: None) -> None:
    """What the user runs today is what transformers takes when it can be imported."""
    space = SPACE.replace(", kernel.linear_attention: torch, kernel.convolution: torch", "")
    bench.search(lambda plan: Act(), space=space, trials=1, anchors=False)
    assert launched(bench) == {("padded", "fla", "causal_conv1d")}


def test_a_verdict_holds_only_beside_the_kernels_that_it_ran_with(
    bench: Bench, gpu_host: None
) -> None:
    """Packed, fla's recurrence is compared beside a convolution, which may be what was wrong."""
    bench.search(lambda plan: Act(), space=SPACE, trials=2)
    other = SPACE.replace("[torch, causal_conv1d, fla]", "[torch, fla]")
    bench.search(lambda plan: Act(), space=other, trials=4)
    assert bench.launcher is not None
    again = [
        (plan.verify[0], plan.config["kernel.convolution"]) for plan in bench.launcher.kernel_plans
    ]
    assert again == [("kernel.linear_attention", "fla")]


def test_a_wrong_kernel_that_the_library_binds_by_itself_is_no_baseline(
    bench: Bench, gpu_host: None
) -> None:
    """Left out of the choices alone, it would be what all others are compared with."""

    def prepare(launcher: Any) -> None:
        launcher.kernel_script = lambda plan: Act(
            kernel_error=0.5 if plan.verify == ("kernel.linear_attention",) else 1e-6
        )

    space = SPACE.replace(", kernel.linear_attention: torch, kernel.convolution: torch", "")
    with pytest.raises(InputError, match=r"linear_attention fla cannot be: its gradient") as caught:
        bench.search(lambda plan: Act(), space=space, trials=2, prepare=prepare)
    assert "kernel.linear_attention: torch under baseline" in str(caught.value.hint)
    assert bench.launcher is not None
    assert bench.launcher.plans == []
