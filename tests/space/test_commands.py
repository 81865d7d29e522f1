"""Space files whose workload is a program of the user's own."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.contract.plan import Topology
from autotune.errors import SpaceError
from autotune.space.loader import parse_space
from autotune.space.model import Choices, CommandSpec
from autotune.space.search_space import SearchSpace

TEXT = """\
version: 1
backend: zero3
workload:
  command: [python, train.py, --ds, "{deepspeed_json}", "-w={param:workers}", "{{}}", 64]
  samples_per_iteration: 64
topology: {processes: 2}
baseline: {command.workers: 2, micro_batch: 4}
params:
  reduce_bucket_size: {choices: [1e5, 1e6]}
  command.workers: {choices: [0, 2, 8]}
"""
TWO = Topology(processes=2, device="cpu", devices_per_node=2)


def parse(*changes: tuple[str, str]) -> SearchSpace:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_space(text, file="own.yaml")


def test_a_command_and_its_own_settings() -> None:
    space = parse()
    assert space.workload == CommandSpec(
        command=(
            "python", "train.py", "--ds", "{deepspeed_json}", "-w={param:command.workers}",
            "{{}}", "64",
        ),
        global_batch=64,
        optimizer=None,
        precision=None,
    )  # fmt: skip
    assert space.knobs["command.workers"].type == "int"
    config = space.on(TWO).baseline_config()
    assert config.values["command.workers"] == 2
    assert config.values["workload.micro_batch"] == 4
    assert config.values["zero3.sub_group_size"] == 1_000_000_000
    # What the command is not given is no part of a configuration.
    assert "workload.batching" not in config.values
    assert "workload.activation_checkpointing" not in config.values


def test_own_settings_can_be_overridden() -> None:
    overrides = ("baseline.command.workers=8", "params.command.workers.choices=[2, 8]")
    space = parse_space(TEXT, file="own.yaml", overrides=overrides)
    assert space.baseline["command.workers"] == 8
    domain = {param.name: param.domain for param in space.params}["command.workers"]
    assert isinstance(domain, Choices)
    assert domain.values == (2, 8)
    added = parse_space(TEXT, file="own.yaml", overrides=("fixed.command.workers=2",
        "baseline.command.workers=null", "params.command.workers=null"))  # fmt: skip
    assert added.fixed == {"command.workers": 2}


def test_assignments_resolve_and_come_back() -> None:
    space = parse().on(TWO)
    assignment = {"reduce_bucket_size": 100_000, "command.workers": 8}
    config = space.resolve(assignment)
    assert config.values["command.workers"] == 8
    assert space.assignment_of(config) == assignment
    assert space.params_of(space.baseline_config())["command.workers"] == 2


def test_without_a_rendered_file_only_named_knobs_are_live() -> None:
    space = parse(
        ('"{deepspeed_json}"', '"{param:reduce_bucket_size}"'),
        (", micro_batch: 4", ""),
        ("samples_per_iteration: 64", "samples_per_iteration: 3"),
    ).on(TWO)  # nobody tells the program how many rows to take, so 3 samples are its own affair
    assert set(space.baseline_config().values) == {"zero3.reduce_bucket_size", "command.workers"}


def test_rows_must_divide_what_the_rendered_file_says() -> None:
    with pytest.raises(SpaceError, match=r"samples_per_iteration 63 is not divisible") as caught:
        parse(("samples_per_iteration: 64", "samples_per_iteration: 63")).on(TWO)
    assert (caught.value.line, caught.value.column) == (7, 45)


@pytest.mark.parametrize(
    ("domain", "baseline", "kind"),
    [
        ("{choices: [true, false]}", "true", "bool"),
        ("{choices: [a, b]}", "a", "text"),
        ("{choices: [0.5, 1]}", "1", "float"),
        ("{choices: [1, 2], type: text}", "1", "text"),
        ("{type: int, low: 1, high: 9}", "2", "int"),
        ("{type: float, low: 0.1, high: 1, log: true}", "0.5", "float"),
    ],
)
def test_an_own_setting_has_the_type_of_its_values(domain: str, baseline: str, kind: str) -> None:
    space = parse(("{choices: [0, 2, 8]}", domain), ("workers: 2", f"workers: {baseline}"))
    assert space.knobs["command.workers"].type == kind


COMMAND = '[python, train.py, --ds, "{deepspeed_json}", "-w={param:workers}", "{{}}", 64]'


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        (("  samples_per_iteration: 64\n", ""), (4, 3), "samples_per_iteration is missing"),
        (("samples_per_iteration: 64", "global_batch: 64"), (5, 3), "global_batch is of autotune"),
        (("  samples", "  model: qwen3-tiny\n  samples"), (5, 3), "model is of autotune's own"),
        ((COMMAND, "python train.py"), (4, 12), "workload.command needs a list"),
        ((COMMAND, "[]"), (4, 12), "workload.command is empty"),
        (("[python", '["{trial_dir}/x"'), (4, 13), "first word is the program"),
        (('"{deepspeed_json}"', "{deepspeed_json}"), (4, 37), "an argument is a text"),
        (("{deepspeed_json}", "{deepspeed_jso}"), (4, 37), "no placeholder 'deepspeed_jso'"),
        (("{deepspeed_json}", "{"), (4, 37), "has no partner"),
        (("{param:workers}", "{param:worker}"), (4, 57), "unknown knob 'worker'"),
        (("{param:workers}", "{param:batching}"), (4, 57), "batching is a knob of autotune's own"),
        (("-w={param:workers}", "-w"), (10, 3), "command.workers does not reach the command"),
        (("{deepspeed_json}", "x"), (9, 3), "reduce_bucket_size does not reach the command"),
        (("micro_batch: 4", "activation_checkpointing: full"), (7, 58), "does not reach"),
        (("command.workers: 2, ", ""), (10, 3), "command.workers has no value to compare with"),
        (("micro_batch: 4", "reduce_bucket_size: auto"), (7, 52), "auto follows from the model"),
        (("backend: zero3", "backend: [zero3, fsdp2]"), (4, 12), "tuned under one backend"),
        (("{choices: [0, 2, 8]}", "{choices: [0, a]}"), (7, 29), "values of several types"),
        (("{choices: [0, 2, 8]}", "{low: 0, high: 8}"), (10, 20), "command.workers has no type"),
    ],
)
def test_errors_have_their_place(
    change: tuple[str, str], place: tuple[int, int], words: str
) -> None:
    with pytest.raises(SpaceError) as caught:
        parse(change)
    assert words in str(caught.value)
    assert (caught.value.line, caught.value.column) == place
    assert caught.value.hint is None or "\n" not in caught.value.hint


def test_a_backend_without_a_file_has_no_placeholder_for_one() -> None:
    with pytest.raises(SpaceError, match="deepspeed_json.* is not there under fsdp2") as caught:
        parse(("zero3", "fsdp2"))
    assert caught.value.hint == "zero3 renders it"


def test_an_own_setting_needs_a_command() -> None:
    change = "workload: {model: qwen3-tiny, global_batch: 16}\nx-old:"
    with pytest.raises(SpaceError, match=r"'command.workers' is a setting of a command"):
        parse(("workload:", change))


def test_samples_per_iteration_needs_a_command() -> None:
    line = "workload: {model: qwen3-tiny, samples_per_iteration: 16, global_batch: 16}\nx-old:"
    with pytest.raises(SpaceError, match="samples_per_iteration goes with a command"):
        parse(("workload:", line))


def test_what_changes_in_a_command_is_said() -> None:
    old, new = parse(), parse(("--ds", "--deepspeed"))
    assert old.fingerprint != new.fingerprint
    (line,) = old.differences(new)
    assert line.startswith("workload.command: ")
    assert '"--ds"' in line


def test_stated_precision_and_optimizer_are_read() -> None:
    more = "  precision: bf16\n  optimizer: {lr: 1e-4}\n  samples"
    spec: Any = parse(("  samples", more)).workload
    assert spec.precision.compute == "bf16"
    assert spec.optimizer.lr == 1e-4
