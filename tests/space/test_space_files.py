from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.contract.plan import Topology
from autotune.errors import SpaceError
from autotune.space import domains, loader
from autotune.space.loader import find_space, load_space, parse_space, shipped_names
from autotune.space.place import printable

MINIMAL = (
    "version: 1\nbackend: zero3\nworkload: {model: m, global_batch: 4}\n"
    "params: {micro_batch: {choices: [1, 2]}}\n"
)
CPU = Topology(processes=2, device="cpu", devices_per_node=2)


@pytest.mark.parametrize(
    ("name", "backend"),
    [("zero3", "zero3"), ("fsdp2", "fsdp2"), ("ddp", "ddp"), ("packing", "fsdp2")],
)
def test_a_shipped_space_runs_as_it_is(name: str, backend: str) -> None:
    space = load_space(f"{name}.yaml").on(CPU)
    assert space.backends == (backend,)
    assert space.workload.model == "qwen3-tiny"
    assert space.workload.data.max_length == 512
    assert space.processes is None
    assert space.dropped == ()
    assert space.violated(space.baseline_config()) is None
    start = space.project(backend, {})
    assert space.contains(start)
    assert space.violated(space.resolve(start)) is None
    assert load_space(name) == load_space(f"{name}.yaml")


def test_the_shipped_space_of_all_backends_runs_as_it_is() -> None:
    space = load_space("both.yaml").on(CPU)
    assert space.backends == ("zero3", "fsdp2", "ddp")
    assert space.baseline_backend == "zero3"
    assert space.dropped == ()
    for backend in space.backends:
        start = space.project(backend, {})
        assert space.contains(start)
        assert start["backend"] == backend
        owners = {name.partition(".")[0] for name in space.resolve(start).values}
        assert owners == {backend, "workload", "kernel"}
        assert {name.partition(".")[0] for name in start} == {"backend", backend, "workload"}


@pytest.mark.parametrize("processes", [1, 8])
def test_the_commands_in_the_head_of_a_shipped_space_can_be_pasted(processes: int) -> None:
    topology = Topology(processes=processes, device="cuda", devices_per_node=processes)
    for name in shipped_names():
        head = find_space(name).read_text().partition("version:")[0]
        lines = "\n".join(re.findall(r"^#     (.*)$", head, re.MULTILINE)).replace("\\\n", " ")
        commands = lines.splitlines()
        assert len(commands) == 2, name
        for command in commands:
            # failglob: a shell that minds an unquoted bracket.
            shell = ["bash", "-O", "failglob", "-c", f"printf '%s\\n' {command}"]
            done = subprocess.run(shell, capture_output=True, text=True, check=True)
            words = done.stdout.splitlines()
            assert words[:4] == ["autotune", "search", "--space", name]
            settings = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
            load_space(name, settings).on(topology).baseline_config()


def test_the_shipped_zero3_baseline_is_the_engines_defaults() -> None:
    space = load_space("zero3.yaml").on(CPU)
    # Some follow from others: torch's own linear attention without a device, and the like.
    defaults = {
        name: knob.default
        for name, knob in space.knobs.items()
        if not knob.always_dead and not knob.default_where
    }
    values = space.baseline_config().values
    assert {name: values[name] for name in defaults} == defaults
    assert all(values[name] is not None for name in set(values) - set(defaults))
    assert space.baseline_config() == space.default_config("zero3")


def test_the_shipped_zero3_space_offers_persistence_zero() -> None:
    """A tiny model has no tensor above the default of 1e5 but its embeddings."""
    space = load_space("zero3.yaml")
    (param,) = [p for p in space.params if p.name == "stage3_param_persistence_threshold"]
    assert domains.contains(param.domain, 0)
    assert domains.contains(param.domain, 100_000)


def test_an_existing_path_wins_over_a_shipped_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_space("zero3.yaml").is_absolute()
    Path("zero3.yaml").write_text(MINIMAL)
    assert load_space("zero3.yaml").workload.global_batch == 4
    assert load_space("zero3").workload.global_batch == 8


@pytest.mark.parametrize("name", ["zero4.yaml", "sub/zero3.yaml", "", "../zero3.yaml", "a\0b"])
def test_a_missing_file_is_an_input_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpaceError) as caught:
        load_space(name)
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith(f"{printable(name) or '--space'}:1:1: ")


def test_a_hostile_file_name_cannot_steer_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a\n\x1b[31m.yaml").write_text("[]")
    with pytest.raises(SpaceError) as caught:
        load_space("a\n\x1b[31m.yaml")
    assert str(caught.value).startswith("a\\n\\x1b[31m.yaml:1:1: a space file is a mapping")


def test_a_name_that_no_file_can_have_is_told_once() -> None:
    with pytest.raises(SpaceError, match="no usable path: File name too long$"):
        load_space("x" * 300)


def test_a_misspelt_shipped_name_is_suggested() -> None:
    with pytest.raises(SpaceError) as caught:
        find_space("zero33.yaml")
    assert caught.value.hint == "did you mean zero3.yaml?"
    assert set(shipped_names()) >= {"zero3.yaml", "fsdp2.yaml", "ddp.yaml", "both.yaml"}


def test_a_folder_and_a_pipe_are_no_space_files(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="this is a folder"):
        load_space(str(tmp_path))
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(SpaceError, match="no regular file"):
        load_space(str(tmp_path / "pipe.yaml"))


def test_an_endless_file_is_not_read(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    with large.open("wb") as stream:
        stream.truncate(10**12)
    with pytest.raises(SpaceError, match="larger than 262,144 bytes"):
        load_space(str(large))


def test_a_wheels_folder_is_searched_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "autotune"
    (package / "_search_spaces").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "_search_spaces" / "zero3.yaml").write_text(MINIMAL)
    monkeypatch.setattr(loader.autotune, "__file__", str(package / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    assert find_space("zero3.yaml") == package / "_search_spaces" / "zero3.yaml"
    assert shipped_names() == ("zero3.yaml",)


def test_sample_files_lie_beside_the_space_file_or_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    (home / "data").mkdir(parents=True)
    here.mkdir()
    monkeypatch.chdir(here)
    file = home / "space.yaml"
    file.write_text(
        MINIMAL.replace(
            "global_batch: 4", "global_batch: 4, data: {jsonl: data/a.jsonl, tokenizer: t}"
        )
    )
    with pytest.raises(SpaceError, match="there is no file") as caught:
        load_space(str(file))
    assert str(caught.value).startswith(f"{file}:3:")
    Path("data").mkdir()
    Path("data/a.jsonl").touch()
    assert load_space(str(file)).workload.data.jsonl == str(here / "data/a.jsonl")
    (home / "data/a.jsonl").touch()
    assert load_space(str(file)).workload.data.jsonl == str(home / "data/a.jsonl")
    text = file.read_text()
    (home / "data/a.jsonl").unlink()
    Path("data/a.jsonl").unlink()
    # A study is rebuilt from its text also where the samples are gone.
    assert parse_space(text, file=str(file), base=home).workload.data.lengths is None


def test_loading_imports_no_heavy_library() -> None:
    code = (
        "import sys; from autotune.space.loader import load_space; load_space('zero3.yaml');"
        "load_space('fsdp2.yaml'); load_space('both.yaml');"
        "heavy = {'torch', 'transformers', 'deepspeed', 'optuna', 'ray'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
