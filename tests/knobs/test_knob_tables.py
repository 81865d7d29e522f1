from __future__ import annotations

import inspect
import re

import pytest

from autotune.knobs import ddp, deepspeed, environment, fsdp2, reasons, workload, zero3
from autotune.knobs.knob import Knob
from autotune.space.expression import Expression

TABLES = {
    "zero3": zero3.KNOBS,
    "deepspeed": deepspeed.KNOBS,
    "fsdp2": fsdp2.KNOBS,
    "ddp": ddp.KNOBS,
    "workload": workload.KNOBS,
    "env": environment.KNOBS,
}
ALL = [knob for table in TABLES.values() for knob in table]


@pytest.mark.parametrize("knob", ALL, ids=lambda knob: knob.full_name)
def test_an_entry_is_complete(knob: Knob) -> None:
    assert knob in TABLES[knob.owner]
    assert knob.source
    assert knob.read_from
    assert knob.meaning.endswith(".")
    assert knob.numerics in ("neutral", "order", "rounding")
    if knob.type in ("text", "bool") or knob.default is None:
        assert knob.low is None or knob.default is None
    elif type(knob.default) is int:
        assert knob.low is not None
        assert knob.low <= knob.default
    else:
        assert knob.default in knob.choices
    if knob.type == "text" and knob.default is not None:
        assert knob.default in knob.choices
    if knob.pattern:
        assert knob.form
    for _, default in knob.default_where:
        assert default in knob.choices or knob.type == "bool"


@pytest.mark.parametrize("owner", TABLES)
def test_names_are_unique(owner: str) -> None:
    names = [knob.name for knob in TABLES[owner]]
    assert len(names) == len(set(names))
    twin = reasons.ALIASES.get(owner)
    others = {knob.name for knob in ALL if knob.owner not in (owner, twin)}
    assert not others & set(names)


@pytest.mark.parametrize("knob", [k for k in ALL if k.dead_when], ids=lambda knob: knob.full_name)
def test_a_condition_of_death_names_siblings_and_facts(knob: Knob) -> None:
    assert knob.dead_when is not None
    known = {sibling.name for sibling in TABLES[knob.owner]}
    if not knob.name.startswith("offload_"):
        known -= {knob.name}
    expression = Expression.parse(knob.dead_when)
    facts = {"processes", "device", "compute", "accumulate", "micro_steps"}
    assert set(expression.names) <= known | facts


@pytest.mark.parametrize("name", [knob.name for knob in zero3.KNOBS])
def test_zero3_is_deepspeed_at_stage_3(name: str) -> None:
    """The alias: the same setting lives and dies alike under both names."""
    one = next(knob for knob in zero3.KNOBS if knob.name == name)
    other = next(knob for knob in deepspeed.KNOBS if knob.name == name)
    assert (one.type, one.low) == (other.type, other.low)
    assert one.numerics == other.numerics or one.always_dead
    defaults = {knob.name: knob.default for knob in zero3.KNOBS}
    for device in ("cpu", "cuda"):
        for compute in ("fp32", "bf16"):
            facts = {"device": device, "compute": compute, "accumulate": "fp32", "processes": 2}
            for changed in ({}, {"offload_optimizer": "cpu", "offload_param": "cpu"}):
                values = {**facts, **defaults, **changed}
                dead = [_dead(one, values), _dead(other, {**values, "zero_stage": 3})]
                assert dead[0] is dead[1]


def _dead(knob: Knob, values: dict[str, object]) -> bool:
    return knob.dead_when is not None and Expression.parse(knob.dead_when).evaluate(values)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_defaults_are_those_of_the_installed_one_at_each_stage(stage: int) -> None:
    config_class = pytest.importorskip("deepspeed.runtime.zero.config").DeepSpeedZeroConfig
    config = config_class(stage=stage)
    by_alias = {field.alias or name: name for name, field in config_class.model_fields.items()}
    for knob in deepspeed.KNOBS:
        if knob.name in ("zero_stage", "deepcompile") or knob.name.startswith("offload_"):
            continue
        default = knob.default
        for condition, value in knob.default_where:
            if Expression.parse(condition).evaluate({"zero_stage": stage}):
                default = value
        attribute = by_alias.get(knob.name, by_alias.get(f"stage3_{knob.name}", knob.name))
        assert getattr(config, attribute) == default, knob.name


def test_offload_sections_have_the_installed_deepspeeds_defaults() -> None:
    module = pytest.importorskip("deepspeed.runtime.zero.offload_config")
    config_class = pytest.importorskip("deepspeed.runtime.zero.config").DeepSpeedZeroConfig
    assert config_class(stage=3).offload_optimizer is config_class(stage=3).offload_param is None
    knobs = {knob.name: knob for knob in deepspeed.KNOBS}
    for name, section in (
        ("offload_optimizer", module.DeepSpeedZeroOffloadOptimizerConfig()),
        ("offload_param", module.DeepSpeedZeroOffloadParamConfig()),
    ):
        assert knobs[name].default == section.device
        assert knobs[f"{name}_pin_memory"].default is section.pin_memory


def test_site_settings_are_never_knobs() -> None:
    """They are the site's: NVLink multicast must stay as the site has it."""
    assert set(environment.FORBIDDEN) == {
        "NCCL_NVLS_ENABLE",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST",
        "NVSHMEM_DISABLE_NVLS",
    }
    names = {knob.name for knob in ALL}
    assert not names & set(environment.FORBIDDEN)
    for knob in environment.KNOBS:
        assert not re.search(r"NVLS|MULTICAST|CLOCK|POWER|PERSISTENCE|MIG", knob.name)
    for value in (1, None):
        found, unset = environment.variables({f"env.{knob.name}": value for knob in ALL})
        assert not (set(found) | set(unset)) & set(environment.FORBIDDEN)


def test_refused_names_are_no_knobs() -> None:
    names = {knob.name for knob in ALL}
    assert "zero_stage" in names
    for refused in (*reasons.REFUSED.values(), workload.WORK):
        assert not names & set(refused)


def test_zero3_defaults_are_those_of_the_installed_deepspeed() -> None:
    config_class = pytest.importorskip("deepspeed.runtime.zero.config").DeepSpeedZeroConfig
    config = config_class(stage=3)
    fields = config_class.model_fields
    by_alias = {field.alias or name: name for name, field in fields.items()}
    for knob in zero3.KNOBS:
        if knob.name.startswith("offload_") or knob.name == "deepcompile":
            continue  # sections of their own, see below
        attribute = by_alias.get(knob.name, by_alias.get(f"stage3_{knob.name}", knob.name))
        assert getattr(config, attribute) == knob.default, knob.name
        assert type(getattr(config, attribute)) is type(knob.default), knob.name


def test_zero3_bounds_are_those_of_the_installed_deepspeed() -> None:
    config_class = pytest.importorskip("deepspeed.runtime.zero.config").DeepSpeedZeroConfig
    for knob in zero3.KNOBS:
        if knob.low is None:
            continue
        accepted = config_class(stage=3, **{knob.name: knob.low})
        assert knob.low in accepted.model_dump().values(), knob.name
        # A group of none is no group to DeepSpeed; here it is 1, which is what it does.
        if knob.name not in ("stage3_module_granularity_threshold", "zero_hpz_partition_size"):
            with pytest.raises(ValueError):
                config_class(stage=3, **{knob.name: knob.low - 1})


def test_fsdp2_defaults_are_those_of_the_installed_torch() -> None:
    fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
    state = pytest.importorskip("torch.distributed.fsdp._fully_shard._fsdp_state").FSDPState()
    knobs = {knob.name: knob for knob in fsdp2.KNOBS}
    # None: true for all units but the root, of which the knob does not speak.
    assert inspect.signature(fully_shard).parameters["reshard_after_forward"].default is None
    assert state._auto_reshard_after_forward is True
    assert knobs["reshard_after_forward"].default is True
    # No explicit lists: nothing ahead in forward, torch's implicit rule (one unit) in backward.
    assert state._states_to_forward_prefetch == []
    assert state._states_to_backward_prefetch == []
    assert knobs["forward_prefetch"].default == 0
    assert knobs["backward_prefetch"].default == 1


def test_deepcompile_is_off_in_the_installed_deepspeed() -> None:
    config = pytest.importorskip("deepspeed.compile.config").CompileConfig()
    knob = next(knob for knob in zero3.KNOBS if knob.name == "deepcompile")
    assert config.deepcompile is knob.default is False


def test_fsdp2_setters_have_the_installed_torchs_defaults(tmp_path) -> None:
    """Read from a group that torch has just made; what this torch lacks is needed by name."""
    fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
    import torch
    import torch.distributed as dist

    from autotune.backends import fsdp2_settings, fsdp2_state

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        module = fully_shard(torch.nn.Linear(2, 2))
        groups = fsdp2_state.groups_of(module)
        found = fsdp2_settings.read_communication(groups)
        found["unshard_in_backward"] = fsdp2_state.flag(groups, "unshard_in_backward", None)
        found["reshard_after_backward"] = fsdp2_state.flag(groups, "reshard_after_backward", None)
    finally:
        dist.destroy_process_group()
    defaults = {knob.name: knob.default for knob in fsdp2.KNOBS}
    assert found == {name: defaults[name] for name in found}


def test_ddp_defaults_are_those_of_the_installed_torch() -> None:
    distributed = pytest.importorskip("torch.nn.parallel.distributed")
    parameters = inspect.signature(distributed.DistributedDataParallel).parameters
    knobs = {knob.name: knob for knob in ddp.KNOBS}
    assert parameters["bucket_cap_mb"].default is None  # 25 MiB
    assert knobs["bucket_cap_mb"].default == 25
    for name in ("gradient_as_bucket_view", "static_graph"):
        assert parameters[name].default is knobs[name].default is False
