"""From a name to a model, on the coordinator's side."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.models.presets import PRESETS
from autotune.models.resolve import resolve_model

CONFIG = {**PRESETS["qwen3-tiny"], "torch_dtype": "bfloat16", "transformers_version": "4.51.0"}


def write_config(folder: Path, **changes: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return folder


def test_preset_has_the_dimensions_of_the_design():
    model = resolve_model("qwen3-tiny", load_weights=False)
    assert model.family == "qwen3"
    assert model.weights is None
    assert {
        "num_hidden_layers": 4,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 2048,
    }.items() <= model.config.items()


def test_published_preset_has_its_published_number_of_parameters():
    # Qwen/Qwen3-0.6B: 0.6 B parameters, 0.44 B without embeddings (its model card).
    model = resolve_model("qwen3-0.6b", load_weights=False)
    assert model.num_parameters == 596_049_920
    assert round((model.num_parameters - 151936 * 1024) / 1e9, 2) == 0.44


def test_folder_is_read_and_equal_models_are_equal_work(tmp_path):
    model = resolve_model(str(write_config(tmp_path / "m")), load_weights=False)
    assert model.name == str(tmp_path / "m")
    assert model.config == resolve_model("qwen3-tiny", load_weights=False).config


@pytest.mark.parametrize(
    ("changes", "size", "source"),
    [
        ({}, 128, "hidden_size"),
        ({"hidden_size": None}, 4096, "the default of the family"),
        # Qwen3 knows no such list: the model is built without it.
        ({"hidden_size": None, "hidden_sizes": [64, 96]}, 4096, "the default of the family"),
    ],
)
def test_the_source_of_the_hidden_size_is_where_the_model_has_it_from(
    tmp_path, changes, size, source
):
    """BUG-060"""
    config = {name: value for name, value in {**CONFIG, **changes}.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = resolve_model(str(tmp_path), load_weights=False)
    assert (model.config["hidden_size"], model.hidden_size_from) == (size, source)


def test_path_that_exists_wins_over_a_preset(tmp_path, monkeypatch):
    write_config(tmp_path / "qwen3-tiny", num_hidden_layers=2)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("qwen3-tiny", load_weights=False).config["num_hidden_layers"] == 2


def test_model_path_with_shell_characters_is_only_a_path(tmp_path, monkeypatch):
    """BUG-070 (model path)."""
    monkeypatch.chdir(tmp_path)
    folder = write_config(tmp_path / "my models" / "Qwen$(touch pwned);x")
    model = resolve_model(str(folder), load_weights=False)
    assert model.name == str(folder)
    assert model.num_parameters == resolve_model("qwen3-tiny", load_weights=False).num_parameters
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("name", ["no such model", "/data/my models/Qwen$(touch pwned);x", "x;y/z"])
def test_hostile_name_that_is_no_path_is_never_asked_at_the_hub(name):
    with pytest.raises(InputError, match="neither a preset nor a folder"):
        resolve_model(name, load_weights=False)


@pytest.mark.parametrize("name", ["", "  ", "a\0b", "x" * 5000, "~nobody-of-that-name/model"])
def test_impossible_names_are_input_errors(name):
    with pytest.raises(InputError):
        resolve_model(name, load_weights=False)


def test_folder_without_config(tmp_path):
    with pytest.raises(InputError, match=r"has no config\.json") as caught:
        resolve_model(str(tmp_path), load_weights=False)
    assert caught.value.exit_code == 2
    assert "qwen3-tiny" in caught.value.hint


def test_file_instead_of_folder(tmp_path):
    folder = write_config(tmp_path)
    with pytest.raises(InputError, match="is a file"):
        resolve_model(str(folder / "config.json"), load_weights=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "must hold a JSON object"),
        ('{"model_type": NaN}', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("{}", "model_type is missing"),
        ('{"model_type": "llama"}', "'llama' belongs to no known model family"),
        ('{"model_type": ["qwen3"]}', "belongs to no known model family"),
    ],
)
def test_unusable_config_is_named(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        resolve_model(str(tmp_path), load_weights=False)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_unknown_family_names_the_known_ones(tmp_path):
    write_config(tmp_path, model_type="llama")
    with pytest.raises(InputError) as caught:
        resolve_model(str(tmp_path), load_weights=False)
    assert "qwen3" in caught.value.hint


def test_config_with_byte_order_mark(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8-sig")
    assert resolve_model(str(tmp_path), load_weights=False).family == "qwen3"


def test_preset_has_no_weights_to_load():
    with pytest.raises(InputError, match="has no weights"):
        resolve_model("qwen3-tiny", load_weights=True)


def test_folder_without_safetensors(tmp_path):
    (write_config(tmp_path) / "pytorch_model.bin").touch()
    with pytest.raises(InputError, match="has no weights") as caught:
        resolve_model(str(tmp_path), load_weights=True)
    assert "load_weights" in caught.value.hint


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "is not an index"),
        ('{"weight_map": []}', "is not an index"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "which is not there"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "outside its folder"),
    ],
)
def test_damaged_index(tmp_path, index, message):
    (write_config(tmp_path) / "model.safetensors.index.json").write_text(index)
    with pytest.raises(InputError, match=message):
        resolve_model(str(tmp_path), load_weights=True)


def test_resolving_imports_no_torch():
    code = (
        "import sys\nfrom autotune.models.resolve import resolve_model\n"
        "from autotune.models.family import family_of\n"
        "model = resolve_model('qwen3-0.6b', load_weights=False)\n"
        "family_of(model.family).flops_per_token(model.config, [100])\n"
        "print(sorted({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
