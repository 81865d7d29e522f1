"""What exports carry of recomputation, environment variables and FSDP2's newer settings."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from accelerate_exports import exported
from study_factory import CONFIG, StudyBuilder, make_plan, measured

from autotune.contract.outcome import ReadBack
from autotune.contract.plan import Topology
from autotune.exporters import choosing, deepspeed
from autotune.exporters.base import ExportResult
from autotune.models import checkpointing
from autotune.report.document import build
from autotune.store.importer import read_study


def of_deepspeed(study: StudyBuilder, **config: Any) -> ExportResult:
    study.trial(measured(0.5, read_back={}), config=CONFIG | config)
    contents = read_study(study.folder)
    return deepspeed.export(choosing.choose(contents, build(contents), "ds.json"))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_trainers_own_switch_says_the_mode_exactly(
    study: StudyBuilder, unasked: None, reentrant: bool
) -> None:
    """BUG-036: a change of checkpointing mode is carried through to the export."""
    result = of_deepspeed(
        study,
        **{"workload.activation_checkpointing": "full", "workload.use_reentrant": reentrant},
    )
    assert list(result.files) == ["ds.json"]
    said = f"gradient_checkpointing_kwargs={{'use_reentrant': {reentrant}}}"
    assert any(said in note for note in result.notes)


def test_what_no_switch_says_is_code_that_does_it(
    study: StudyBuilder, unasked: None, tmp_path: Path
) -> None:
    result = of_deepspeed(
        study,
        **{"workload.activation_checkpointing": "selective", "workload.checkpoint_every": 2},
    )
    assert list(result.files) == ["ds.json", "ds_checkpointing.py"]
    assert any("selective, every 2 layers" in note for note in result.notes)
    (tmp_path / "ds_checkpointing.py").write_text(result.files["ds_checkpointing.py"])
    sys.path.insert(0, str(tmp_path))
    try:
        import ds_checkpointing
    finally:
        sys.path.remove(str(tmp_path))
    module = make_small_model()
    ds_checkpointing.enable(module)
    found = checkpointing.found(module)
    assert (found.mode, found.every, found.reentrant) == ("selective", 2, False)
    import torch
    import torch.nn.attention.varlen  # registers its operator
    from torch.utils.checkpoint import CheckpointPolicy

    checkpointing._policy.cache_clear()  # it knows what was registered when it was made
    kept = ds_checkpointing._selective_contexts()[0].policy_fn
    ours = checkpointing._policy()
    aten, flex = torch.ops.aten, torch.ops.higher_order.flex_attention
    for function in (aten.mm.default, flex, torch.ops.torch_attn._varlen_attn.default):
        assert kept(None, function) == ours(None, function) == CheckpointPolicy.MUST_SAVE
    silu = aten.silu.default
    assert kept(None, silu) == ours(None, silu) == CheckpointPolicy.PREFER_RECOMPUTE


def make_small_model() -> Any:
    from transformers import AutoModelForCausalLM, Qwen3Config

    return AutoModelForCausalLM.from_config(
        Qwen3Config(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=4,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            vocab_size=64,
            use_cache=False,
        )
    ).train()


@pytest.mark.parametrize("target", ["ds.json", "zero3", "fsdp2", "ddp"])
def test_variables_go_with_the_file_as_a_script(
    study: StudyBuilder, unasked: None, tmp_path: Path, target: str
) -> None:
    """BUG-042: the allocator's setting is part of the configuration and exported with it."""
    config = {
        "env.PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "env.NCCL_BUFFSIZE": 8_388_608,
        "env.NCCL_MAX_CTAS": None,
    }
    if target == "ds.json":
        result = of_deepspeed(study, **config)
    else:
        result = exported(study, target, config=config)
    (name,) = [name for name in result.files if name.endswith(".env.sh")]
    (tmp_path / name).write_text(result.files[name])
    command = f"NCCL_MAX_CTAS=4; export NCCL_MAX_CTAS; . ./{name}; env"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert "PYTORCH_ALLOC_CONF=expandable_segments:True" in lines
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in lines
    assert "NCCL_BUFFSIZE=8388608" in lines
    assert not any(line.startswith("NCCL_MAX_CTAS=") for line in lines)
    assert any(name in note and "NCCL_MAX_CTAS not set" in note for note in result.notes)


def test_what_the_site_had_set_while_it_was_measured_goes_along(
    study: StudyBuilder, unasked: None
) -> None:
    """BUG-042 where no file names the variable; settings of the site alone stay the site's."""
    record = study.recorder.study()
    assert record is not None
    site = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "NCCL_BUFFSIZE": "1048576"}
    variables = {**site, "NCCL_NVLS_ENABLE": "0"}
    study.recorder.save_study(
        dataclasses.replace(record, environment={**record.environment, "variables": variables})
    )
    config = {"env.NCCL_BUFFSIZE": 8_388_608}
    cuda = Topology(processes=2, device="cuda", devices_per_node=2)
    result = exported(study, "ddp", config=config, topology=cuda)
    script = result.files["acc.env.sh"]
    assert "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" in script
    assert "export NCCL_BUFFSIZE=8388608\n" in script
    assert "1048576" not in script
    assert "NVLS" not in script
    (note,) = [note for note in result.notes if "acc.env.sh" in note]
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (as the site had set it)" in note
    assert "acc.env.sh" not in exported(study, "ddp").files  # without a device it changes nothing


def test_a_configuration_without_variables_has_no_script(
    study: StudyBuilder, unasked: None
) -> None:
    assert list(of_deepspeed(study).files) == ["ds.json"]


def test_fsdp2s_settings_are_constants_and_calls(study: StudyBuilder, unasked: None) -> None:
    result = exported(
        study,
        "fsdp2",
        config={
            "fsdp2.replicate": 2,
            "fsdp2.gradient_sync": "scatter",
            "fsdp2.separate_reduce_scatter_group": True,
            "workload.activation_checkpointing": "full",
            "workload.use_reentrant": True,
            "kernel.adamw": "foreach",
        },
    )
    code = result.files["acc_setup.py"]
    compile(code, "acc_setup.py", "exec")
    for line in (
        "REPLICATE = 2",
        "GRADIENT_SYNC = 'scatter'",
        "SEPARATE_REDUCE_SCATTER_GROUP = True",
        "USE_REENTRANT = True",
        "'foreach': True",
    ):
        assert line in code
    notes = "\n".join(result.notes)
    assert "replicate=2" in notes
    assert "activation checkpointing (full, use_reentrant true)" in notes
    assert "before_backward(model, last)" in notes


def test_zero3_says_hierarchy_compilation_and_quantised_traffic(
    study: StudyBuilder, unasked: None
) -> None:
    config = {
        "zero3.zero_hpz_partition_size": 2,
        "zero3.deepcompile": True,
        "zero3.zero_quantized_gradients": True,
        "kernel.adamw": "loop",
    }
    result = of_deepspeed(study, **config)
    written = json.loads(result.files["ds.json"])
    assert written["compile"] == {"deepcompile": True}
    assert any("until engine.compile() is called" in note for note in result.notes)
    zero = written["zero_optimization"]
    assert zero["zero_hpz_partition_size"] == 2
    assert zero["zero_quantized_gradients"] is True
    assert "deepcompile" not in zero
    assert written["optimizer"]["params"]["foreach"] is False


def test_deepspeed_itself_takes_them(study: StudyBuilder) -> None:
    config = {
        "zero3.zero_hpz_partition_size": 2,
        "zero3.zero_quantized_weights": True,
        "zero3.deepcompile": True,
    }
    back = {
        name: ReadBack(requested=value, actual=value, level="live")
        for name, value in config.items()
    }
    study.trial(measured(0.5, read_back=back), config=CONFIG | config)
    contents = read_study(study.folder)
    result = deepspeed.export(choosing.choose(contents, build(contents), "ds.json"))
    assert str(result.checked_with).startswith("deepspeed ")


def test_experts_are_named_in_the_json_itself() -> None:
    """BUG-035: the export says which modules are gathered as a whole."""
    import dataclasses

    from autotune.backends.deepspeed import Zero3Backend

    plan = make_plan()
    model = dataclasses.replace(plan.workload.model, family="qwen3_moe")
    workload = dataclasses.replace(plan.workload, model=model)
    rendered = Zero3Backend().render(dataclasses.replace(plan, workload=workload))
    leaf = rendered["zero_optimization"]["leaf_module"]
    assert leaf == {"classes": ["Qwen3MoeSparseMoeBlock"]}
    assert "leaf_module" not in Zero3Backend().render(plan)["zero_optimization"]
    config_class = pytest.importorskip("deepspeed.runtime.zero.config").DeepSpeedZeroConfig
    assert config_class(stage=3, leaf_module=leaf).leaf_module.classes == leaf["classes"]
