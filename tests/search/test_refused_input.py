"""What the preflight refuses, told at its place in the space file, with nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripted import Act, Bench

from autotune.cli.main import main
from autotune.errors import InputError

HEAD = "version: 1\nbackend: {backend}\nworkload:\n  model: {model}\n  global_batch: 16\n"
DATA = "  data: {data}\n"
ROWS = "params:\n  micro_batch: {choices: [1, 2]}\n"


@pytest.fixture
def refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Start a real search on a space that must be refused; return exit code and message."""
    monkeypatch.chdir(tmp_path)

    def run(
        rest: str = ROWS,
        *,
        backend: str = "zero3",
        model: str = "qwen3-tiny",
        data: str = "{max_length: 64}",
        options: tuple[str, ...] = (),
    ) -> tuple[int, str]:
        text = HEAD.format(backend=backend, model=model) + DATA.format(data=data) + rest
        (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
        code = main(["search", "--space", "s.yaml", *options])
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "Traceback" not in printed.err
        assert not (tmp_path / "runs").exists()
        return code, printed.err

    return run


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("qwen3-tinny", "model 'qwen3-tinny' is neither a preset nor a folder"),
        ("nowhere/at/all", "is neither a preset nor a folder that exists nor a hub id"),
        (".", "has no config.json"),
        ("s.yaml", "model s.yaml is a file"),
        ("broken", "broken/config.json is not valid JSON"),
        ("other", "model_type 'llama' belongs to no known model family"),
        ("deep", "num_hidden_layers must be at most 10000; found 1000000000"),
        ("wide", "hidden_size must be at most 2147483647; found 1000000000000"),
        ("x" * 3000, "x" * 197 + "...'"),
    ],
)
def test_a_model_that_cannot_be_used_is_told_at_its_place(
    refused: Any, tmp_path: Path, model: str, words: str
) -> None:
    configs = {
        "broken": "{",
        "other": json.dumps({"model_type": "llama"}),
        "deep": json.dumps({"model_type": "qwen3", "num_hidden_layers": 10**9}),
        "wide": json.dumps({"model_type": "qwen3", "hidden_size": 10**12}),
    }
    for name, text in configs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    code, message = refused(model=model)
    assert code == 2
    assert message.startswith("s.yaml:4:10: ")
    assert words in message
    assert len(message) < 600


def test_weights_of_another_model_are_no_study(refused: Any, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (folder / "model.safetensors").write_bytes(b"xx")
    code, message = refused("  load_weights: true\n" + ROWS, model="m")
    assert code == 2
    assert message.startswith("s.yaml:4:10: m/model.safetensors is damaged")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "holds no samples"),
        ('{"text": "a"}\n{bad\n', "d.jsonl:2: not JSON"),
        ('{"text": "a"}\n' * 63, "has 63 samples; the cycle of global batches needs 64"),
        ('{"messages": [{"role": "user", "content": [1]}]}\n', "'content' of message 1"),
    ],
)
def test_data_that_cannot_be_used_is_told_at_its_place(
    refused: Any, tmp_path: Path, content: str, words: str
) -> None:
    (tmp_path / "d.jsonl").write_text(content)
    code, message = refused(data="{jsonl: d.jsonl, tokenizer: t}")
    assert code == 2
    assert message.startswith("s.yaml:6:9: ")
    assert words in message


@pytest.mark.parametrize(
    ("backend", "rest", "place", "words"),
    [
        ("zero3", "  precision: {compute: bf16, master: bf16}\n" + ROWS, "7:14", "master weights"),
        ("fsdp2", "  precision: {compute: bf16, reduce: bf16}\n" + ROWS, "7:14", "accumulate fp32"),
        ("fsdp2", "baseline: {layers_per_unit: 9}\n" + ROWS, "7:29", "layers_per_unit 9"),
        ("fsdp2", "fixed: {forward_prefetch: 9}\n" + ROWS, "7:27", "forward_prefetch 9"),
    ],
)
def test_a_baseline_that_cannot_run_is_told_at_its_place(
    refused: Any, backend: str, rest: str, place: str, words: str
) -> None:
    code, message = refused(rest, backend=backend)
    assert code == 2
    assert message.startswith(f"s.yaml:{place}: the baseline cannot run here: ")
    assert words in message


@pytest.mark.parametrize(
    ("backend", "rest", "start"),
    [
        ("zero3", ROWS + "constraints:\n  - micro_batch > 100\n",
         "s.yaml:10:5: no configuration of the space may run: constraint micro_batch > 100\n"),
        ("zero3", ROWS + "constraints: [micro_batch > 1, micro_batch < 2]\n",
         "s.yaml:8:3: no configuration of the space may run: constraint micro_batch "),
        ("fsdp2", "params:\n  layers_per_unit: {choices: [99, 100]}\n",
         "s.yaml:8:3: no configuration of the space may run: layers_per_unit "),
        ("zero3", "fixed: {overlap_comm: false}\nparams:\n"
         "  stage3_prefetch_bucket_size: {low: 1, high: 9, when: overlap_comm == true}\n",
         "s.yaml:9:3: no parameter is left to tune (stage3_prefetch_bucket_size: its condition "
         "overlap_comm == true is never true)\n"),
    ],
)  # fmt: skip
def test_a_space_of_which_nothing_is_left(
    refused: Any, backend: str, rest: str, start: str
) -> None:
    code, message = refused(rest, backend=backend)
    assert code == 2
    assert message.startswith(start)


def test_a_large_space_of_which_nothing_is_found_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = HEAD.format(backend="zero3", model="qwen3-tiny") + DATA.format(data="{max_length: 64}")
    text += "params:\n  reduce_bucket_size: {low: 1, high: 1e6}\n"
    text += "constraints: [reduce_bucket_size > 1e7]\n"
    Path("s.yaml").write_text(text, encoding="utf-8")
    assert main(["search", "--space", "s.yaml", "--dry-run"]) == 0
    assert (
        "none of 2,000 configurations drawn at random may run "
        "(constraint reduce_bucket_size > 1e7)" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--trials", str(10**20)), 2, "at most 1,000,000"),
        (("--study", "x" * 5000), 2, "a study's name of 5,000 characters is too long"),
        (("--runs", "x" * 300), 3, "the runs folder cannot be used: File name too long"),
        (("--storage", "postgresql://h:port/x"), 2, "--storage is not a database URL"),
        (("--set", "topology.processes=100000"), 2, "--set topology.processes: topology.processes"),
        (("--set", "y" * 5000 + "=1"), 2, "s.yaml:1:1: --set " + "y" * 197 + "...: unknown key"),
        (("--set", "workload.global_batch=1e9"), 2, "must be at most 65536"),
        (("--set", "workload.data.max_length=1e12"), 2, "must be at most 16777216"),
    ],
)
def test_options_out_of_all_proportion(
    refused: Any, options: tuple[str, ...], code: int, words: str
) -> None:
    found, message = refused(options=options)
    assert found == code
    assert words in message
    assert len(message) < 700


LONG = """
version: 1
backend: fsdp2
workload: {{model: qwen3-tiny, global_batch: 4, data: {{lengths: ultrachat-like, max_length: {0}}}}}
topology: {{processes: 2}}
baseline: {{batching: packed, max_tokens: {1}}}
params: {{max_tokens: {{choices: [{2}]}}}}
"""


@pytest.mark.parametrize(
    ("text", "length"),
    [
        (LONG.format(64, 65536, "128, 65536"), "65,536"),
        (LONG.format(50000, 0, 0).replace("batching: packed, max_tokens: 0", "micro_batch: 1")
            .replace("max_tokens: {choices: [0]}", "layers_per_unit: {choices: [1, 2]}"), "50,000"),
    ],
)  # fmt: skip
def test_rows_longer_than_the_models_positions_are_refused(
    bench: Bench, text: str, length: str
) -> None:
    """BUG-051: a packed row of micro-steps is capped by the positions, and so is a sample."""
    with pytest.raises(InputError, match=f"{length} tokens are longer than the model's 40,960"):
        bench.search(lambda plan: Act(), space=text)


def test_longer_packed_rows_than_the_models_positions_cost_no_launch(bench: Bench) -> None:
    """BUG-051: the other choice is searched."""
    bench.search(lambda plan: Act(), space=LONG.format(64, 128, "128, 256, 65536"), trials=4)
    assert bench.launcher is not None
    rows = {plan.config["workload.max_tokens"] for plan in bench.launcher.plans}
    assert rows == {128, 256}
    assert "65,536 tokens are longer" in bench.messages()
