"""ZeRO in a rank: build, step, and say what the engine really holds.

At stage 3 the model is built shard by shard; at stages 1 and 2 every rank holds all weights.
Read from DeepSpeed 0.19.8 (``runtime/engine.py``, ``runtime/bf16_optimizer.py``, and of
``runtime/zero`` ``stage_1_and_2.py``, ``stage3.py``, ``parameter_offload.py``,
``partition_parameters.py``).
"""

from __future__ import annotations

import contextlib
import logging
import math
import operator
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from autotune.backends import adamw, deepspeed_flattening, recompute
from autotune.backends import deepspeed as rendering
from autotune.backends.base import IncompatibleConfigError, RankContext
from autotune.backends.filling import fill, fill_buffers
from autotune.backends.numberformats import TORCH_DTYPES
from autotune.contract.outcome import ReadBackLevel
from autotune.contract.plan import Plan
from autotune.knobs import zero3
from autotune.knobs.deepspeed import stages_of
from autotune.models import checkpointing, lora
from autotune.models.family import family_of
from autotune.models.weights import WeightSource


class DeepSpeedEngine:
    """A DeepSpeed engine at stage 1, 2 or 3."""

    def __init__(self, engine: Any, init: Any, plan: Plan, leaves: tuple[str, ...]) -> None:
        self._engine = engine
        self._init = init
        """The ``zero.Init`` that gathers parameters; ``None`` below stage 3."""
        self._plan = plan
        self._leaves = leaves
        # The engine makes the optimizer's state by an update of nothing (stage3.py,
        # initialize_optimizer_states).
        self._updates_before = self._updates() or 0

    @property
    def model(self) -> nn.Module:
        model: nn.Module = self._engine
        return model

    @property
    def module(self) -> nn.Module:
        module: nn.Module = self._engine.module
        return module

    def before_forward(self, *, last: bool) -> None:
        pass

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(self) -> torch.Tensor | float:
        self._engine.step()
        # A skipped update leaves the norm of the step before in place (stage3.py, step), or an
        # infinite one (stage_1_and_2.py, bf16_optimizer.py).
        if self._engine.optimizer.overflow:
            return math.nan
        norm: torch.Tensor | float = self._engine.get_global_grad_norm()
        return norm

    def read_back(self) -> Mapping[str, tuple[Any, ReadBackLevel]]:
        stage, owner = _stage_of(self._engine.optimizer), self._plan.backend
        found: dict[str, tuple[Any, ReadBackLevel]] = {"zero_stage": (stage, "live")}
        parts = _Parts(self._engine, self._init)
        for key, path in (_LIVE_AT_3 if stage == 3 else _LIVE_BELOW_3).items():
            try:
                found[key] = (operator.attrgetter(path)(parts), "live")
            except AttributeError:
                continue  # an optimizer that keeps it elsewhere: its parsed config follows
        for key in rendering.OFFLOADS:
            if key not in found:
                continue
            if found[key][0]:
                found[key] = ("cpu", "live")
            else:
                found[key] = ("none", "live")
                found.pop(f"{key}_pin_memory", None)  # there is nothing to pin
        parsed = self._engine._config.zero_config
        for full_name in self._plan.config:
            of, _, key = full_name.partition(".")
            field = key.removeprefix("stage3_")
            wanted = of == owner and key not in (*found, *rendering.OFFLOADS)
            # BF16_Optimizer has no buckets, whatever the configuration says of them.
            read = stage in stages_of(key) and (stage == 3 or "reduce_bucket_size" in found)
            if wanted and read and hasattr(parsed, field):
                found[key] = (getattr(parsed, field), "parsed")
        if stage == 3:
            grouped = self._init.zero_param_process_group is not None
            found |= {
                "zero_hpz_partition_size": (
                    self._init.num_ranks_in_param_group if grouped else 1,
                    "live",
                ),
                "zero_quantized_gradients": (
                    self._engine.optimizer.all2all_process_group is not None,
                    "live",
                ),
            }
            if self._plan.topology.device == "cuda":  # without a device it is dead
                found["deepcompile"] = (bool(self._engine.is_deepcompile_active()), "live")
            linear = torch.nn.functional.linear.__module__.startswith("deepspeed.")
            found["memory_efficient_linear"] = (linear, "effect")
        named = {f"{owner}.{key}": value for key, value in found.items()}
        basic = getattr(self._engine, "basic_optimizer", None)
        if basic is not None:
            named[adamw.KNOB] = (adamw.implementation(basic), "live")
        return named

    def formats(self) -> Mapping[str, str]:
        return {}  # stages and precisions keep them in too many places; parity shows them

    def updates(self) -> int | None:
        counted = self._updates()
        return None if counted is None else counted - self._updates_before

    def _updates(self) -> int | None:
        basic = getattr(self._engine, "basic_optimizer", None)
        return None if basic is None else adamw.updates(basic)

    def notes(self) -> Mapping[str, Any]:
        optimizer = self._engine.optimizer
        notes: dict[str, Any] = {"zero_optimizer": type(optimizer).__name__}
        stage = _stage_of(optimizer)
        if stage == 3:
            notes["overlap_comm"] = "stage 3 keeps no live copy: read from the parsed configuration"
        owner, config = self._plan.backend, self._plan.config
        rounding = [
            f"{owner}.{knob.name}"
            for knob in zero3.KNOBS
            if knob.numerics == "rounding"
            and stage in stages_of(knob.name)
            and config.get(f"{owner}.{knob.name}", knob.default) != knob.default
        ]
        if rounding:
            notes["rounding"] = rounding
        if self._leaves:
            notes["z3_leaf_modules"] = list(self._leaves)
        unverified = rendering.DeepSpeedBackend.unverified(self._plan)
        if unverified:
            notes["unverified"] = unverified
        return notes

    def close(self) -> None:
        self._engine.destroy()


def _stage_of(optimizer: Any) -> int:
    """The stage by what the engine made: ``BF16_Optimizer`` is stage 1 in bf16."""
    if hasattr(optimizer, "parameter_offload"):
        return 3
    return 2 if getattr(optimizer, "partition_gradients", False) else 1


_OFFLOAD: Final = "engine.optimizer.parameter_offload."
_COORDINATOR: Final = f"{_OFFLOAD}param_coordinator._PartitionedParameterCoordinator__"
"""The parameter coordinator keeps its limits under private, mangled names."""
_BUCKETS: Final = {
    "reduce_bucket_size": "engine.optimizer.reduce_bucket_size",
    "reduce_scatter": "engine.optimizer.reduce_scatter",
    "contiguous_gradients": "engine.optimizer.contiguous_gradients",
}
_LIVE_BELOW_3: Final = {
    **_BUCKETS,
    "overlap_comm": "engine.optimizer.overlap_comm",
    "use_multi_rank_bucket_allreduce": "engine.optimizer.use_multi_rank_bucket_allreduce",
    "round_robin_gradients": "engine.optimizer.round_robin_gradients",
    "offload_optimizer": "engine.optimizer.cpu_offload",
    "offload_optimizer_pin_memory": "engine.optimizer.cpu_offload_pin_memory",
}
_LIVE_AT_3: Final = {
    **_BUCKETS,
    "sub_group_size": "engine.optimizer.sub_group_size",
    "stage3_param_persistence_threshold": f"{_OFFLOAD}param_numel_persistence_threshold",
    "stage3_model_persistence_threshold": f"{_OFFLOAD}model_persistence_threshold",
    "stage3_prefetch_bucket_size": f"{_COORDINATOR}prefetch_bucket_sz",
    "stage3_max_live_parameters": f"{_COORDINATOR}max_n_available_params",
    "stage3_max_reuse_distance": f"{_COORDINATOR}max_reuse_dist_in_numel",
    "allgather_sequential": "init.allgather_sequential",
    "zero_quantized_weights": "init.quantized_weights",
    "stage3_use_all_reduce_for_fetch_params": "init.use_all_reduce_for_fetch_params",
    "offload_optimizer": "engine.optimizer.offload_optimizer",
    "offload_optimizer_pin_memory": "engine.optimizer.offload_optimizer_pin_memory",
    "offload_param": "engine.optimizer.offload_param",
    "offload_param_pin_memory": "engine.optimizer.offload_param_pin_memory",
}
"""Knob to the attribute that the running parts use. ``BF16_Optimizer`` has none of the buckets."""


class _Parts(NamedTuple):
    """What the paths of the live values start from."""

    engine: Any
    init: Any
    """The ``zero.Init`` that gathers parameters for the engine's whole life, at stage 3."""


def build(config: dict[str, Any], plan: Plan, rank: RankContext) -> DeepSpeedEngine:
    """Build the engine from exactly ``config``.

    Raises:
        IncompatibleConfigError: DeepSpeed refuses the configuration.
    """
    import deepspeed

    _quiet(deepspeed)
    dtype = TORCH_DTYPES[plan.training.precision.compute]
    module = family_of(plan.training.model.family).build(
        plan.training.model,
        dtype=dtype,
        kernels=plan.kernels,
        static_shapes=plan.cut.distinct_shapes == 1,
    )
    lora.attach(module, plan.training, trained=dtype)
    checkpointing.enable(module, recompute.wanted(plan))
    # Without it zero.Init parses the configuration as if there were one process.
    deepspeed.init_distributed()
    init: Any = None
    leaves: tuple[str, ...] = ()
    if config["zero_optimization"]["stage"] == 3:
        init = _partition(module, config, plan, rank)
        leaves = _set_leaves(module, plan)
    else:
        fill(module, WeightSource.of(plan.training.model, module), rank)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with _refusals(), deepspeed_flattening.on_device():
        engine, *_ = deepspeed.initialize(model=module, model_parameters=trained, config=config)
        if config.get("compile", {}).get("deepcompile") and rank.device.type == "cuda":
            engine.compile()
    return DeepSpeedEngine(engine, init, plan, leaves)


def _set_leaves(module: nn.Module, plan: Plan) -> tuple[str, ...]:
    """Let experts be gathered as a whole; must come before the engine sets its hooks.

    Which experts run changes from step to step and from rank to rank, and a gather that not all
    ranks take part in hangs (``deepspeed/utils/z3_leaf_module.py``).

    Returns:
        The classes of which the model has modules.
    """
    from deepspeed.utils import set_z3_leaf_modules

    names = family_of(plan.training.model.family).leaf_classes
    if not names:
        return ()
    found = set_z3_leaf_modules(module, list(names), raise_if_not_found=False)
    return tuple(sorted({type(leaf).__name__ for leaf in found}))


def _quiet(deepspeed: Any) -> None:
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # On gloo DeepSpeed would compile a shared-memory op at first use: 45 s, with a C++ compiler
    # and ninja on PATH. Losses and step times are the same without it. The table of what can be
    # compiled is filled on first access, by running compilers; no op is needed here, so an empty
    # one takes its place (deepspeed/ops/__init__.py, comm/torch.py).
    table = vars(deepspeed.ops).setdefault("__compatible_ops__", defaultdict(bool))
    table["deepspeed_shm_comm"] = False


def _partition(module: nn.Module, config: dict[str, Any], plan: Plan, rank: RankContext) -> Any:
    """Give each parameter its by-name values and keep only this rank's shard, one at a time.

    ``zero.Init`` on the first owner converts it and sets the engine-wide switches; the others
    join it through the parameter's own ``convert_to_zero_parameters``, as the engine itself does
    (``parameter_offload.py``, ``_convert_to_zero_parameters``).
    """
    import deepspeed

    dtype = TORCH_DTYPES[plan.training.precision.compute]
    source = WeightSource.of(plan.training.model, module)
    fill_buffers(module, rank.device)
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for owner in module.modules():
        for leaf, parameter in owner._parameters.items():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append((owner, leaf))
    init: Any = None
    first: Any = None
    for name, meta in list(module.named_parameters()):
        values = source.tensor(name, tuple(meta.shape), device=rank.device).to(dtype)
        rank.beat()
        parameter = nn.Parameter(values, requires_grad=meta.requires_grad)
        places = owners[id(meta)]
        for owner, leaf in places:
            owner._parameters[leaf] = parameter
        del values
        if first is None:
            holder = nn.Module()
            holder.register_parameter("weight", parameter)
            with _refusals():
                init = deepspeed.zero.Init(module=holder, config_dict_or_path=config, dtype=dtype)
            first = parameter
        else:
            first.convert_to_zero_parameters(param_list=[parameter])
    return init


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """What DeepSpeed raises for a configuration is a refusal; anything else is a crash."""
    try:
        yield
    except (ValueError, AssertionError, NotImplementedError) as error:
        # pydantic's ValidationError is a ValueError.
        raise IncompatibleConfigError(_first_lines(error)) from error


def _first_lines(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"DeepSpeed refuses the configuration: {text[:500] or type(error).__name__}"
