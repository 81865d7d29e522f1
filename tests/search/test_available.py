"""What this machine or the installed versions lack is left out before the first launch."""

from __future__ import annotations

import pytest
from scripted import Act, Bench

from autotune.contract.plan import Topology
from autotune.errors import InputError
from autotune.search import available
from autotune.space.loader import parse_space

CPU = Topology(processes=2, device="cpu", devices_per_node=2)
CUDA = Topology(processes=2, device="cuda", devices_per_node=2)
HEAD = "version: 1\nbackend: {}\nworkload: {{model: qwen3-tiny, global_batch: 16}}\nparams:\n"


def space_of(backend: str, *params: str, rest: str = ""):
    text = HEAD.format(backend) + "".join(f"  {line}\n" for line in params) + rest
    return parse_space(text, file="space.yaml")


DEVICE_ONLY = (
    "env.NCCL_MAX_CTAS: {choices: [null, 8]}",
    "env.PYTORCH_ALLOC_CONF: {choices: [null, 'expandable_segments:True']}",
    "env.CUDA_DEVICE_MAX_CONNECTIONS: {choices: [null, 1, 32]}",
    "env.TORCH_NCCL_HIGH_PRIORITY: {choices: [null, true]}",
    "fsdp2.separate_reduce_scatter_group: {choices: [true, false]}",
    "fsdp2.reduce_scatter_input_buffers: {choices: [1, 2]}",
    "fsdp2.allocate_from_process_group: {choices: [true, false]}",
)


def test_settings_of_a_device_are_not_tuned_without_one():
    space = space_of("fsdp2", *DEVICE_ONLY, "micro_batch: {choices: [1, 2]}")
    left = available.available(space.on(CPU), CPU)
    assert [param.name for param in left.params] == ["micro_batch"]
    reasons = {item.param: item.reason for item in left.dropped}
    assert len(reasons) == len(DEVICE_ONLY)
    assert set(reasons.values()) == {"it needs a CUDA device"}
    # What is left out has its default, and the key of a space that never named it.
    plain = space_of("fsdp2", "micro_batch: {choices: [1, 2]}").on(CPU)
    assert left.resolve({"micro_batch": 2}).key == plain.resolve({"micro_batch": 2}).key


@pytest.mark.parametrize("backend", ["zero3", "deepspeed"])
def test_a_file_that_fixes_deepcompile_serves_both_machines(backend: str):
    space = space_of(backend, "micro_batch: {choices: [1, 2]}", rest="fixed: {deepcompile: true}\n")
    available.available(space.on(CPU), CPU)


def test_a_file_that_fixes_them_serves_both_machines():
    space = space_of(
        "fsdp2",
        "micro_batch: {choices: [1, 2]}",
        rest="fixed: {env.NCCL_MAX_CTAS: 8, separate_reduce_scatter_group: true}\n",
    )
    available.available(space.on(CPU), CPU)


def test_what_an_engine_would_do_without_a_device_is_refused_there():
    space = space_of(
        "zero3",
        "micro_batch: {choices: [1, 2]}",
        rest="fixed: {zero_quantized_weights: true}\nsearch: {allow: [zero_quantized_weights]}\n",
    )
    with pytest.raises(InputError, match="zero_quantized_weights True cannot be here: it needs a"):
        available.available(space.on(CPU), CPU)


def test_a_method_that_torch_lacks_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(available, "_fsdp_methods", lambda: frozenset({"set_unshard_in_backward"}))
    space = space_of(
        "fsdp2",
        "separate_reduce_scatter_group: {choices: [true, false]}",
        "micro_batch: {choices: [1, 2]}",
    ).on(CUDA)
    left = available.available(space, CUDA)
    assert [param.name for param in left.params] == ["micro_batch"]
    assert "no FSDPModule.set_separate_reduce_scatter_group" in left.dropped[0].reason
    fixed = space_of(
        "fsdp2",
        "micro_batch: {choices: [1, 2]}",
        rest="fixed: {separate_reduce_scatter_group: true}\n",
    ).on(CUDA)
    with pytest.raises(InputError, match="no FSDPModule.set_separate_reduce_scatter_group"):
        available.available(fixed, CUDA)


def test_methods_of_the_installed_torch_are_found_without_importing_it():
    found = available._fsdp_methods()
    assert {"set_unshard_in_backward", "set_requires_gradient_sync"} <= found


@pytest.mark.parametrize("compiler", [True, False])
def test_what_deepspeed_compiles_needs_a_compiler(monkeypatch: pytest.MonkeyPatch, compiler: bool):
    monkeypatch.setattr(available, "_has_compiler", lambda: compiler)
    space = space_of(
        "zero3",
        "deepcompile: {choices: [true, false]}",
        "zero_quantized_weights: {choices: [true, false]}",
        "micro_batch: {choices: [1, 2]}",
        rest="search: {allow: [zero_quantized_weights]}\n",
    ).on(CUDA)
    left = [param.name for param in available.available(space, CUDA).params]
    both = ["deepcompile", "zero_quantized_weights", "micro_batch"]
    assert left == (both if compiler else ["micro_batch"])


def test_quantised_communication_needs_permission():
    with pytest.raises(InputError, match="changes rounding and is tuned only with permission"):
        space_of("zero3", "zero_quantized_gradients: {choices: [true, false]}")


@pytest.mark.parametrize(
    ("line", "backend"),
    [
        ("replicate: {choices: [1, 2, 3]}", "fsdp2"),
        ("replicate: {type: int, low: 1, high: 8}", "fsdp2"),
        ("zero_hpz_partition_size: {choices: [1, 2, 4]}", "zero3"),
    ],
)
def test_groups_must_divide_the_processes(line: str, backend: str):
    space = space_of(backend, line).on(CPU)
    assert space.params[0].domain.values == (1, 2)
    assert "the 2 processes" in space.dropped[-1].reason or "can hold" in space.dropped[-1].reason


def test_a_search_says_what_it_leaves_out(bench: Bench) -> None:
    space = """
version: 1
backend: fsdp2
workload: {model: qwen3-tiny, global_batch: 16, data: {lengths: ultrachat-like, max_length: 64}}
topology: {processes: 2}
params:
  micro_batch: {choices: [1, 2]}
  env.NCCL_BUFFSIZE: {choices: [null, 1048576]}
"""
    bench.search(lambda plan: Act(), space=space, trials=2, anchors=False)
    assert "env.NCCL_BUFFSIZE is not tuned: it needs a CUDA device" in bench.messages()
    assert bench.launcher is not None
    assert all(plan.environment == {} for plan in bench.launcher.plans)
