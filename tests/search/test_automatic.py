"""BUG-059: ``auto`` is a number before anything is launched; BUG-060: taken from where it says."""

import json
from pathlib import Path

import pytest

from autotune.cli.main import main

SPACE = """
version: 1
backend: zero3
workload: {{model: {model}, global_batch: 8, data: {{lengths: ultrachat-like, max_length: 64}}}}
topology: {{processes: 2}}
fixed: {{reduce_bucket_size: auto}}
baseline: {{stage3_prefetch_bucket_size: auto}}
params:
  micro_batch: {{choices: [1, 2]}}
  stage3_prefetch_bucket_size: {{type: int, low: 1e3, high: 1e8, log: true}}
"""


def plan_of(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> dict:
    file = folder / "space.yaml"
    file.write_text(text)
    words = ["search", "--space", str(file), "--runs", str(folder / "runs"), "--dry-run", "--json"]
    assert main(words) == 0
    return json.loads(capsys.readouterr().out)


def test_auto_is_resolved_by_the_rule_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = plan_of(tmp_path, SPACE.format(model="qwen3-tiny"), capsys)
    text = json.dumps(document, ensure_ascii=False)
    assert "reduce_bucket_size: auto is 16,384 (hidden_size² for hidden_size 128)" in text
    assert "stage3_prefetch_bucket_size: auto is 14,745" in text
    assert document["fixed"] == {"zero3.reduce_bucket_size": 16384}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("fixed: {sub_group_size: auto}", "sub_group_size"),
        ("fixed: {overlap_comm: auto}", "overlap"),
    ],
)
def test_auto_without_a_rule_names_the_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, name: str
) -> None:
    text = SPACE.format(model="qwen3-tiny").replace("fixed: {reduce_bucket_size: auto}", line)
    file = tmp_path / "space.yaml"
    file.write_text(text)
    assert main(["search", "--space", str(file), "--runs", str(tmp_path / "r"), "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert f"{file}:6:" in error
    assert name in error
    assert "no rule" in error


def test_auto_and_its_number_are_not_the_same_space(tmp_path: Path) -> None:
    from autotune.contract.plan import Topology
    from autotune.space.loader import parse_space

    text = SPACE.format(model="qwen3-tiny")
    written = parse_space(text, file="space.yaml")
    number = parse_space(
        text.replace("fixed: {reduce_bucket_size: auto}", "fixed: {reduce_bucket_size: 16384}"),
        file="space.yaml",
    )
    bound = written.on(Topology(processes=2, device="cpu", devices_per_node=2))
    values = {"zero3.reduce_bucket_size": 16384, "zero3.stage3_prefetch_bucket_size": 14745}
    resolved = bound.with_auto(values)
    assert resolved.fingerprint == written.fingerprint
    assert written.differences(resolved) == ()
    assert resolved.baseline_config().values["zero3.stage3_prefetch_bucket_size"] == 14745
    assert written.differences(number) == ("fixed zero3.reduce_bucket_size: auto -> 16384",)


@pytest.mark.parametrize("more", [{}, {"hidden_sizes": [64, 96]}])
def test_a_model_that_states_no_size_needs_explicit_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict
) -> None:
    """BUG-060: the library would build its own width of 4096, with the list or without it."""
    config = {"model_type": "qwen3", "vocab_size": 512, "num_hidden_layers": 1, **more}
    (tmp_path / "config.json").write_text(json.dumps(config))
    file = tmp_path / "space.yaml"
    file.write_text(SPACE.format(model=tmp_path))
    assert main(["search", "--space", str(file), "--runs", str(tmp_path / "r"), "--dry-run"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert f"{file}:" in error
    assert "no hidden_size, neither at its top nor in text_config" in error
    for key in ("reduce_bucket_size", "stage3_prefetch_bucket_size"):
        assert key in error
    assert "stage3_param_persistence_threshold as numbers" in error
