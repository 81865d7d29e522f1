"""An attention that the model's class does not support costs no launch."""

from __future__ import annotations

import pytest
from scripted import Act, Bench

from autotune.errors import InputError
from autotune.search import kernels

SPACE = """
version: 1
backend: fsdp2
workload:
  model: {model}
  global_batch: 8
  data: {{lengths: ultrachat-like, max_length: 64}}
topology: {{processes: 2}}
baseline: {{micro_batch: 1}}
params:
  micro_batch: {{choices: [1, 2]}}
  kernel.attention: {{choices: [sdpa, flex_attention]}}
"""
REASON = "Qwen3_5ForCausalLM of transformers [0-9.]+ does not support it"


@pytest.fixture(autouse=True)
def _gpu_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which every kernel can run."""
    monkeypatch.setattr(kernels, "unavailable", lambda choice, machine: None)


@pytest.mark.parametrize(
    ("model", "launched", "compared"),
    [
        ("qwen3_5-tiny", {"sdpa"}, []),
        ("qwen3-tiny", {"sdpa", "flex_attention"}, ["flex_attention"]),
    ],
)
def test_it_is_left_out_before_any_launch(
    bench: Bench, model: str, launched: set[str], compared: list[str]
) -> None:
    bench.search(lambda plan: Act(), space=SPACE.format(model=model), trials=4)
    assert bench.launcher is not None
    attention = "kernel.attention"
    checks = [plan for plan in bench.launcher.kernel_plans if plan.verify == (attention,)]
    assert [plan.config[attention] for plan in checks] == compared
    assert {plan.config[attention] for plan in bench.launcher.trials()} == launched
    said = "kernel.attention: 'flex_attention' is left out: Qwen3_5ForCausalLM of transformers"
    assert (said in bench.messages()) == (not compared)


@pytest.mark.parametrize("section", ["fixed", "baseline"])
def test_what_the_user_has_stated_is_an_error_with_its_place(bench: Bench, section: str) -> None:
    space = SPACE.format(model="qwen3_5-tiny").replace(
        "  kernel.attention: {choices: [sdpa, flex_attention]}\n", ""
    )
    space = space.replace("params:", f"{section}: {{kernel.attention: flex_attention}}\nparams:")
    space = space.replace("baseline: {micro_batch: 1}\n", "")
    with pytest.raises(InputError, match=rf"space.yaml:9:\d+: attention .* cannot be: {REASON}"):
        bench.search(lambda plan: Act(), space=space, trials=4)
