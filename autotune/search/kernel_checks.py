"""Before trial 0: each kernel that the space offers is compared with its reference, once.

What passed is kept in the study's folder under a digest of machine, versions and workload, and
not compared again. What fails, crashes or hangs is taken out of the space with the reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterator
from typing import Any, Final

from autotune.contract import codec, jsonfile
from autotune.contract.failures import FailureKind
from autotune.contract.folder import StudyFolder
from autotune.contract.kernels import KernelVerdict
from autotune.contract.outcome import Failure, RankRecord
from autotune.contract.plan import Plan, Reference, Workload
from autotune.errors import RecordError
from autotune.knobs.kernels import OWNER
from autotune.models.family import family_of
from autotune.models.kernels.choice import LayerKernels
from autotune.models.kernels.table import LAYERS, references
from autotune.search.events import EventSink, Message
from autotune.search.kernels import full_name, offered
from autotune.search.launching import Runner
from autotune.search.preflight import Prepared, without
from autotune.space.model import Choices, Config
from autotune.space.search_space import SearchSpace
from autotune.store.provenance import environment_fingerprint

_BATCHING: Final = "workload.batching"
_TOKENS: Final = "workload.max_tokens"
_ROWS: Final = "workload.micro_batch"
_LASTING: Final[tuple[FailureKind, ...]] = ("incompatible", "not_in_effect")
"""Ends of a comparison that another one would have, too."""


def with_right_kernels(prepared: Prepared, runner: Runner, events: EventSink) -> Prepared:
    """Return ``prepared`` without the kernels that are wrong or do not run here.

    Where trials run elsewhere, as those of a recorded table, nothing can be compared here.

    Raises:
        SpaceError: One of them is fixed or the baseline's, or none is left of a parameter.
        KeyboardInterrupt: The user asked to stop.
        EnvironmentFault: The launcher failed.
    """
    if not isinstance(prepared.workload, Workload) or not prepared.where.is_here:
        return prepared
    begun, launched = time.monotonic(), 0
    gone: dict[str, dict[Any, str]] = {}
    for plan, layer, choice in plans(prepared):
        digest = _digest(prepared, plan)
        verdict = _known(prepared.folder, digest)
        if verdict is None:
            launched += 1
            events(Message(text=f"{full_name(layer)}: {choice!r} is compared with its reference"))
            verdict = _launch(prepared, plan, runner)
            _keep(prepared.folder, digest, verdict)
        if verdict.reason:
            gone.setdefault(full_name(layer), {})[choice] = verdict.reason
    if launched:
        seconds = time.monotonic() - begun
        events(Message(text=f"{launched} kernels compared in {seconds:.0f} s"))
    return without(prepared, gone, _instead)


def plans(prepared: Prepared) -> Iterator[tuple[Plan, LayerKernels, str]]:
    """A plan for each choice that needs one."""
    base = prepared.space.baseline_config()
    packed = _packed(prepared.space, base)
    number = 0
    for layer in LAYERS:
        if full_name(layer) in base.dead:
            continue
        for choice in offered(prepared.space, layer):
            if choice != layer.reference:
                yield _plan(prepared, base, packed, layer, choice, number), layer, choice
                number += 1


def _plan(
    prepared: Prepared,
    base: Config,
    packed: dict[str, Any] | None,
    layer: LayerKernels,
    choice: str,
    number: int,
) -> Plan:
    """One process; rows are packed where the space packs and some kernels keep them apart."""
    alone = {**references(), layer.knob: choice}
    together = None if packed is None else _unmixed(prepared, layer, choice)
    cut = packed if together is not None and packed is not None else {}
    knob = full_name(layer)
    kernels = {f"{OWNER}.{name}": value for name, value in (together or alone).items()}
    plan = prepared.planner.plan(
        dataclasses.replace(base, values={**base.values, **cut, **kernels}),
        number=number,
        attempt=0,
        purpose="kernel",
        reference=Reference(),
        racing=None,
    )
    one = dataclasses.replace(plan.topology, processes=1, devices_per_node=1, nodes=1)
    return dataclasses.replace(plan, topology=one, verify=(knob,))


def _unmixed(prepared: Prepared, layer: LayerKernels, choice: str) -> dict[str, str] | None:
    """The choice with kernels that keep packed samples apart, the reference's where they do."""
    assert isinstance(prepared.workload, Workload)
    model = prepared.workload.model
    family = family_of(model.family)
    names = [other.knob for other in LAYERS]
    each = [
        (choice,)
        if other is layer
        else tuple(dict.fromkeys((other.reference, *offered(prepared.space, other))))
        for other in LAYERS
    ]
    for values in itertools.product(*each):
        chosen = dict(zip(names, values, strict=True))
        if family.packing_refusal(model.config, chosen) is None:
            return chosen
    return None


def _packed(space: SearchSpace, base: Config) -> dict[str, Any] | None:
    """The cut of the longest packed rows that the space allows; ``None`` where it packs none."""
    if space.limits.packing is not None:
        return None
    if "packed" not in {base.values[_BATCHING], *_tuned(space, _BATCHING)}:
        return None
    limits = [base.values[_TOKENS], *_tuned(space, _TOKENS)]
    longest = max((limit for limit in limits if limit is not None), default=None)
    return {_BATCHING: "packed", _TOKENS: longest, _ROWS: None} if longest is not None else None


def _tuned(space: SearchSpace, knob: str) -> list[Any]:
    """The choices of a tuned knob, or the end of its range."""
    found: list[Any] = []
    for param in space.params:
        if param.knob == knob:
            domain = param.domain
            found += domain.values if isinstance(domain, Choices) else [domain.high]
    return found


def _launch(prepared: Prepared, plan: Plan, runner: Runner) -> KernelVerdict:
    found, where = runner.run_alone(plan, fault="a kernel could not be checked")
    check = found.kernel if isinstance(found, RankRecord) else None
    (knob,) = plan.verify
    return KernelVerdict(
        knob=knob,
        choice=str(plan.config[knob]),
        reason=_reason(found),
        check=check,
        failure=found.kind if isinstance(found, Failure) else None,
        driver=prepared.environment["driver"],
        folder=str(where.path.relative_to(prepared.folder.path)),
    )


def _reason(found: RankRecord | Failure) -> str:
    if isinstance(found, Failure):
        return f"comparing it with its reference ended in {found.kind}: {found.reason}"
    assert found.kernel is not None, "a rank that compares a kernel says what came of it"
    return "" if found.kernel.passed else found.kernel.reason


def _digest(prepared: Prepared, plan: Plan) -> str:
    """Digest of all that decides what comes of the comparison."""
    workload, schedule = plan.training, plan.cut
    return jsonfile.digest(
        {
            "environment": environment_fingerprint(prepared.environment),
            "autotune": prepared.environment["autotune"],
            "model": codec.to_json(workload.model),
            "compute": workload.precision.compute,
            "longest": workload.samples.max_length,
            "lengths": list(workload.samples.lengths) if schedule.batching == "packed" else None,
            "row": schedule.worst_case.length if schedule.batching == "packed" else None,
            "static": schedule.distinct_shapes == 1,
            "kernel": {name: plan.config[name] for name in plan.verify},
            "beside": {name: plan.kernels[name] for name in references()},
        }
    )


def _known(folder: StudyFolder, digest: str) -> KernelVerdict | None:
    """A verdict that holds: what ran out of time or memory, hung or crashed may end well now."""
    path = folder.kernel_verdict(digest[:16])
    with contextlib.suppress(FileNotFoundError, RecordError):
        found = codec.from_json(KernelVerdict, jsonfile.read_json(path), where=str(path))
        if found.check is not None or found.failure in _LASTING:
            return found
    return None


def _keep(folder: StudyFolder, digest: str, verdict: KernelVerdict) -> None:
    jsonfile.write_json(folder.kernel_verdict(digest[:16]), codec.to_json(verdict))


def _instead(knob: str) -> str:
    return (
        f"state another kernel, such as {knob}: {references()[knob.partition('.')[2]]} under "
        "baseline, or see the log in the study's folder"
    )
