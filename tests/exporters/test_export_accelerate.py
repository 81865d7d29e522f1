"""The accelerate export: its files, and that accelerate itself takes them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate_exports import exported
from study_factory import StudyBuilder, make_plan, measured

from autotune.cli.main import main
from autotune.contract.outcome import ReadBack
from autotune.contract.plan import Topology
from autotune.errors import InputError, NothingToExportError
from autotune.exporters import (
    accelerate,
    accelerate_check,
    accelerate_engines,
    choosing,
    exactness,
)
from autotune.exporters.base import ExportResult
from autotune.report.document import build
from autotune.store.importer import read_study


def test_zero3_is_a_yaml_that_only_names_its_json(study: StudyBuilder, tmp_path: Path) -> None:
    """BUG-057: precision, accumulation, clipping, stage and offload live in the JSON only."""
    result = exported(
        study, "zero3", folder=tmp_path, config={"zero3.reduce_bucket_size": 15_099_494}
    )
    text, companion = result.files.values()
    assert list(result.files) == ["acc.yaml", "acc.deepspeed.json"]
    data = yaml.safe_load(text)
    assert data["distributed_type"] == "DEEPSPEED"
    assert data["deepspeed_config"] == {
        "deepspeed_config_file": str(tmp_path / "acc.deepspeed.json"),
        "zero3_init_flag": True,
    }
    assert data["num_processes"] == 2
    assert data["num_machines"] == 1
    assert "mixed_precision" not in data
    assert not re.search(r"accumulation|clipping|zero_stage|offload", text)
    written = json.loads(companion)
    assert written["bf16"] == {"enabled": True}
    assert written["gradient_clipping"] == 1.0
    assert exactness.same(written["gradient_accumulation_steps"], 4)
    assert written["zero_optimization"]["stage"] == 3
    assert "reduce_bucket_size: " not in text
    assert '"reduce_bucket_size": 15099494' in companion
    version = metadata.version("accelerate")
    assert str(result.checked_with).startswith(f"accelerate {version} and deepspeed ")
    assert result.losses == ()


def of_experts(study: StudyBuilder, target: str | None = None) -> ExportResult:
    study.trial(measured(0.5, read_back={}, notes={"z3_leaf_modules": ["Qwen3MoeSparseMoeBlock"]}))
    contents = read_study(study.folder)
    request = choosing.choose(contents, build(contents), "acc.yaml", target_version=target)
    return accelerate.export(request)


def test_experts_are_gathered_whole_by_accelerates_own_field(study: StudyBuilder) -> None:
    """Without it, and without the call that it stands for, ZeRO-3 hangs on unused experts."""
    result = of_experts(study)
    section = yaml.safe_load(result.files["acc.yaml"])["deepspeed_config"]
    assert section["deepspeed_moe_layer_cls_names"] == "Qwen3MoeSparseMoeBlock"
    assert "set_z3_leaf_modules" not in "\n".join(result.notes)
    assert result.checked_with is not None


def test_an_older_accelerate_has_no_field_for_experts(study: StudyBuilder, unasked: None) -> None:
    result = of_experts(study, "0.29.0")
    assert "deepspeed_moe_layer_cls_names" not in result.files["acc.yaml"]
    assert any("set_z3_leaf_modules" in note for note in result.notes)


def test_text_stays_text_and_numbers_are_not_quoted(study: StudyBuilder, unasked: None) -> None:
    """BUG-056: a bare no becomes a boolean; BUG-059: nothing is auto."""
    fp32 = make_plan().workload.precision
    result = exported(study, "fsdp2", precision=fp32)
    text = result.files["acc.yaml"]
    assert "mixed_precision: 'no'\n" in text
    assert "downcast_bf16: 'no'\n" in text
    data = yaml.safe_load(text)
    assert exactness.same(data["mixed_precision"], "no")
    assert exactness.same(data["downcast_bf16"], "no")
    assert exactness.same(data["num_processes"], 2)
    assert exactness.same(data["fsdp_config"]["fsdp_version"], 2)
    assert not re.search(r":\s*['\"][\d.e+-]+['\"]", text)
    for content in result.files.values():
        assert not re.search(r"\bauto\b", content)
    assert exactness.same(yaml.safe_load(yaml.safe_dump(data)), data)


def test_a_value_of_auto_is_refused(study: StudyBuilder, unasked: None) -> None:
    """BUG-059."""
    with pytest.raises(NothingToExportError, match="reduce_bucket_size is 'auto'"):
        exported(study, "zero3", config={"zero3.reduce_bucket_size": "auto"})


def test_fsdp2_in_accelerates_own_names_and_accelerate_agrees(study: StudyBuilder) -> None:
    result = exported(
        study,
        "fsdp2",
        config={
            "fsdp2.reshard_after_forward": False,
            "fsdp2.forward_prefetch": 2,
            "workload.activation_checkpointing": "full",
        },
    )
    data = yaml.safe_load(result.files["acc.yaml"])
    assert data["distributed_type"] == "FSDP"
    assert data["mixed_precision"] == "bf16"
    assert data["fsdp_config"] == {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": False,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": "Qwen3DecoderLayer",
        "fsdp_activation_checkpointing": True,
        "fsdp_offload_params": False,
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    assert result.checked_with == f"accelerate {metadata.version('accelerate')}"
    notes = "\n".join(result.notes)
    assert "forward_prefetch=2, wrap_embeddings=false, reduction in fp32" in notes
    assert "from acc_setup import shard" in notes
    code = result.files["acc_setup.py"]
    compile(code, "acc_setup.py", "exec")
    for line in (
        "FORWARD_PREFETCH = 2",
        "RESHARD_AFTER_FORWARD = False",
        "PARAM_DTYPE = torch.bfloat16",
        "REDUCE_DTYPE = torch.float32",
        "GRADIENT_ACCUMULATION_STEPS = 4",
        "ACTIVATION_CHECKPOINTING = 'full'",
    ):
        assert f"\n{line}\n" in code


def test_ddp_is_multi_gpu_with_its_arguments_beside_it(study: StudyBuilder, tmp_path: Path) -> None:
    config = {"ddp.bucket_cap_mb": 50, "ddp.gradient_as_bucket_view": True}
    result = exported(study, "ddp", config=config)
    data = yaml.safe_load(result.files["acc.yaml"])
    assert data["distributed_type"] == "MULTI_GPU"
    assert data["num_processes"] == 2
    assert any("bucket_cap_mb=50" in note for note in result.notes)
    assert result.losses == ()
    file = tmp_path / "acc_setup.py"
    file.write_text(result.files["acc_setup.py"])
    code = (
        "import acc_setup\n(h,) = acc_setup.kwargs_handlers()\n"
        "assert type(h).__name__ == 'DistributedDataParallelKwargs'\n"
        "assert (h.bucket_cap_mb, h.gradient_as_bucket_view) == (50, True)\n"
        "assert (acc_setup.MICRO_BATCH, acc_setup.GRADIENT_ACCUMULATION_STEPS) == (2, 4)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_an_argument_of_ddp_that_accelerate_has_no_field_for_is_a_loss(
    study: StudyBuilder, unasked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerate_engines, "_DDP_FIELDS", frozenset({"bucket_cap_mb"}))
    result = exported(study, "ddp", config={"ddp.bucket_cap_mb": 50, "ddp.static_graph": True})
    assert "ddp.static_graph=True" in result.losses
    assert "DDP = {'bucket_cap_mb': 50}" in result.files["acc_setup.py"]


def test_torchs_own_bucket_rule_is_not_written_as_a_number(
    study: StudyBuilder, unasked: None
) -> None:
    """Unset it has a first bucket of 1 MiB, which 25 would not have."""
    result = exported(study, "ddp", config={"ddp.bucket_cap_mb": 25})
    assert "bucket_cap_mb" not in result.files["acc_setup.py"]


@pytest.mark.parametrize("backend", ["ddp", "fsdp2"])
def test_what_the_trainer_has_to_do_is_said_for_every_engine(
    backend: str, study: StudyBuilder, unasked: None
) -> None:
    full = {"workload.activation_checkpointing": "full", "workload.batching": "sorted"}
    result = exported(study, backend, config=full)
    assert "ACTIVATION_CHECKPOINTING = 'full'" in result.files["acc_setup.py"]
    assert "MASTER_DTYPE = torch.float32" in result.files["acc_setup.py"]
    assert any("batching: sorted" in note for note in result.notes)
    packed = {"batching": "packed", "max_tokens": 512, "micro_batch": None}
    result = exported(study, backend, config={f"workload.{k}": v for k, v in packed.items()})
    assert any("position ids that restart" in note for note in result.notes)
    assert result.losses == ("the cut of the global batch by tokens",)


def test_several_machines_and_one_process(study: StudyBuilder, unasked: None) -> None:
    topology = Topology(processes=16, device="cuda", devices_per_node=8, nodes=2)
    result = exported(study, "fsdp2", topology=topology)
    data = yaml.safe_load(result.files["acc.yaml"])
    assert (data["num_processes"], data["num_machines"]) == (16, 2)
    assert any("machine_rank" in note for note in result.notes)
    one = Topology(processes=1, device="cuda", devices_per_node=1)
    data = yaml.safe_load(exported(study, "ddp", topology=one).files["acc.yaml"])
    assert exactness.same(data["distributed_type"], "NO")


def test_deepspeed_on_several_machines_needs_no_ssh(study: StudyBuilder) -> None:
    """Accelerate's own default is pdsh with a hostfile, which the notes do not speak of."""
    topology = Topology(processes=4, device="cuda", devices_per_node=2, nodes=2)
    result = exported(study, "zero3", topology=topology)
    section = yaml.safe_load(result.files["acc.yaml"])["deepspeed_config"]
    assert section["deepspeed_multinode_launcher"] == "standard"
    assert result.checked_with is not None
    assert any("machine_rank" in note for note in result.notes)


def test_a_group_size_is_said_by_the_code_only(study: StudyBuilder, unasked: None) -> None:
    topology = Topology(processes=4, device="cuda", devices_per_node=4)
    result = exported(study, "fsdp2", topology=topology, config={"fsdp2.reshard_after_forward": 2})
    fsdp = yaml.safe_load(result.files["acc.yaml"])["fsdp_config"]
    assert fsdp["fsdp_reshard_after_forward"] is True
    assert "RESHARD_AFTER_FORWARD = 2" in result.files["acc_setup.py"]
    assert any("reshard_after_forward=2" in note for note in result.notes)


def test_what_accelerate_refuses_is_not_exported(tmp_path: Path) -> None:
    """BUG-057: with the JSON, its fields must not stand in the YAML; unknown keys stop it too."""
    config = {"train_batch_size": 2, "zero_optimization": {"stage": 3}}
    section = {"deepspeed_config_file": "x/ds.json", "zero3_init_flag": True}
    base = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED"}
    base |= {"num_processes": 2, "num_machines": 1}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"mixed_precision": "bf16", "deepspeed_config": section}, "will be ignored"),
        ({"deepspeed_config": section | {"zero_stage": 3}}, "will be ignored"),
        ({"deepspeed_config": section, "no_such_key": 1}, "no_such_key"),
    ]
    for extra, words in wrong:
        files = {"a.yaml": yaml.safe_dump(base | extra), "ds.json": json.dumps(config)}
        with pytest.raises(NothingToExportError, match=f"accelerate [0-9.]+ refuses.*{words}"):
            accelerate_check.check_in_accelerate(files, "a.yaml", {})


def test_another_understanding_is_no_success() -> None:
    assert accelerate_check.differences({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}) == []
    assert accelerate_check.differences({"a": {"b": 1}}, {"a": {"b": True}}) == [
        "a.b is True, not 1"
    ]


def test_a_target_version_without_fsdp2_is_refused(study: StudyBuilder, unasked: None) -> None:
    """BUG-057: what an older version cannot say is said, and nothing else is written instead."""
    with pytest.raises(NothingToExportError, match="no FSDP version 2"):
        exported(study, "fsdp2", target_version="1.5.2")
    assert exported(study, "fsdp2", target_version="1.6.0").files
    assert exported(study, "zero3", target_version="0.34.0").files
    for version in ("0.9.0", "new"):
        with pytest.raises(InputError):
            exported(study, "zero3", target_version=version)


def test_a_value_that_the_engine_did_not_have_is_refused(
    study: StudyBuilder, unasked: None
) -> None:
    seen = {"fsdp2.forward_prefetch": ReadBack(requested=2, actual=0, level="live")}
    with pytest.raises(NothingToExportError, match="forward_prefetch"):
        exported(study, "fsdp2", config={"fsdp2.forward_prefetch": 2}, read_back=seen)


def test_the_name_is_a_yaml_name(study: StudyBuilder, unasked: None, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="YAML"):
        exported(study, "ddp", file="acc.json", folder=tmp_path)
    assert "demo.yaml" in exported(study, "ddp", file="demo.json").files


def test_without_accelerate_the_export_says_so(
    study: StudyBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerate_check, "is_installed", lambda package: False)
    result = exported(study, "fsdp2")
    assert result.checked_with is None
    assert any("accelerate is not installed" in note for note in result.notes)


def test_the_command_writes_all_files_and_replaces_its_own(
    study: StudyBuilder, unasked: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study.trial(measured(0.5, read_back={}))
    words = ["export", "--format", "accelerate", "--runs", str(study.runs)]
    for _ in range(2):
        assert main([*words, "-o", str(tmp_path / "acc.yaml")]) == 0
    out = capsys.readouterr().out
    data = yaml.safe_load((tmp_path / "acc.yaml").read_text())
    beside = Path(data["deepspeed_config"]["deepspeed_config_file"])
    assert json.loads(beside.read_text())["zero_optimization"]["stage"] == 3
    assert f"wrote {beside}" in out
    about = json.loads((tmp_path / "acc.yaml.provenance.json").read_text())
    assert set(about["files"]) == {"acc.yaml", "acc.deepspeed.json"}
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert yaml.safe_load(out)["deepspeed_config"]["deepspeed_config_file"] == (
        "demo.accelerate.deepspeed.json"
    )
    assert "-o FILE also writes demo.accelerate.deepspeed.json" in err
