"""One rank of one trial, from the plan to its record.

Whatever happens, the rank leaves ``rank-N.json``: a measurement, or the first error with its
kind, phase and iteration. The caller ends the process with the returned code at once
(``os._exit``): a peer that waits in a collective then sees the connection close.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import os
import random
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.contract.extensions import ExtensionBuild
from autotune.contract.failures import STEPPING
from autotune.contract.folder import AttemptFolder
from autotune.contract.kernels import KernelCheck
from autotune.contract.outcome import PeakMemory, RankMeasurement, RankStatus, ReadBack
from autotune.contract.plan import Plan
from autotune.worker.failures import InterruptedTrialError, PlanMismatchError, rank_error
from autotune.worker.heartbeat import Heartbeat
from autotune.worker.record import TERMINATED, RankRecorder
from autotune.worker.termination import TerminationWatch

if TYPE_CHECKING:
    import torch

    from autotune.backends.base import Engine
    from autotune.worker.measure import Meter
    from autotune.worker.memory import MemoryMeter

TEARDOWN_S: Final = 5.0
"""Longest wait for the process group to close; then the process ends all the same."""


def run_rank(folder: Path, rank: int) -> int:
    """Run rank ``rank`` of the trial in ``folder`` and return the exit code of its process.

    0: measured (or stopped early as clearly slower); 1: failed, the record says how; 3: the
    record could not be written.
    """
    session = _Session(AttemptFolder(folder), rank)
    with TerminationWatch(session.terminate):
        return session.run()


class _Session:
    def __init__(self, folder: AttemptFolder, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._heart = Heartbeat(folder.heartbeat_file(rank))
        self._recorder = RankRecorder(folder, rank, self._heart)
        self._memory: MemoryMeter | None = None

    def run(self) -> int:
        """Run all phases and write the record."""
        self._heart.enter("launch")
        try:
            plan = self._folder.read_plan()
            self._recorder.digest = plan.digest
            if plan.purpose == "kernel":
                return self._recorder.write("checked", kernel=self._kernel(plan))
            if plan.purpose == "extension":
                return self._recorder.write("built", extension=self._extension(plan))
            status, measurement, engine = self._trial(plan)
        except BaseException as error:  # whatever ends a rank is recorded
            return self._fail(error)
        code = self._recorder.write(status, measurement=measurement)
        _tear_down(engine)
        return code

    def _kernel(self, plan: Plan) -> KernelCheck:
        """Compare a kernel with its reference: one process, no iterations."""
        self._heart.enter("init")
        from autotune.worker import kernel_check

        place = _prepare(plan, self._rank)
        self._heart.enter("check")
        return kernel_check.check(plan, place.device, self._heart.pulse)

    def _extension(self, plan: Plan) -> ExtensionBuild:
        """Build what an engine would compile at first use: one process, no model."""
        self._heart.enter("init")
        from autotune.worker import extensions

        _prepare(plan, self._rank)
        self._heart.enter("build")
        return extensions.build(plan)

    def terminate(self) -> None:
        """Record that the trial was stopped from outside, and end the process."""
        self._record_error(InterruptedTrialError("the trial was stopped by a signal"))
        os._exit(TERMINATED)

    def _trial(self, plan: Plan) -> tuple[RankStatus, RankMeasurement, Engine]:
        self._heart.enter("init")
        import torch

        from autotune.backends.base import RankContext, backend_of
        from autotune.data.stream import TokenStream
        from autotune.models.family import family_of
        from autotune.worker import attestation, leaks, memory, rendezvous
        from autotune.worker.gradients import GradientWatch
        from autotune.worker.measure import Meter
        from autotune.worker.step import Stepper

        self._heart.pulse()  # a cold rank has imported its libraries until here
        place = _prepare(plan, self._rank)
        rendezvous.init_process_group(plan, self._rank, folder=self._folder.path)
        _compare_digests(plan, place.device)
        meter_memory = memory.meter_for(place.device, place.local_processes)
        self._memory = meter_memory

        self._heart.enter("build")
        backend = backend_of(plan.backend)
        context = RankContext(
            rank=self._rank,
            local_rank=place.local_rank,
            device=place.device,
            beat=self._heart.pulse,
        )
        engine: Engine = backend.build(plan, context)
        family = family_of(plan.training.model.family)
        vocabulary = family.vocab_size(plan.training.model.config)
        stream = TokenStream(plan.training, plan.cut, self._rank, vocabulary, place.device)
        stream.prepare()
        read_back = attestation.read_engine(plan, engine)
        attestation.require_in_effect(plan, read_back, owners={plan.backend, "env", "kernel"})
        attestation.require_trainable(plan, engine.module)
        torch.manual_seed(plan.training.model.seed)
        meter_memory.reset()

        stepper = Stepper(
            engine=engine,
            family=family,
            stream=stream,
            processes=plan.topology.processes,
            device=place.device,
            moved=self._heart.pulse,
        )
        if plan.cut.batching == "packed":
            self._heart.enter("check")
            leaks.require_no_leak(plan, family, engine, place.device)
        meter = Meter(plan, stepper, meter_memory, place.device, self._heart)
        gradients = GradientWatch(family, engine.module)
        meter.check(gradients.watching())
        gradients.require_gradients()
        attestation.require_same_kernels(plan, family.implementations(engine.module))
        read_back |= attestation.read_schedule(plan, stream, self._rank)
        attestation.require_in_effect(plan, read_back, owners={"workload"})
        formats = attestation.read_formats(plan, engine)
        attestation.require_formats(formats)
        read_back |= formats
        meter.warm_up()
        meter.measure()
        meter.probe()

        self._heart.enter("teardown")
        # An engine may have changed a value on its way: what it holds now is what was timed.
        read_back |= attestation.read_engine(plan, engine) | attestation.read_formats(plan, engine)
        attestation.require_updates(engine, len(meter.losses))
        # What the iterations ran with: an engine may have changed it while it was built.
        threads = {"threads": torch.get_num_threads()}
        gc_note = {"gc": "collected at cycle ends, untimed"}
        notes = {**place.notes, **threads, **engine.notes(), **gc_note}
        measurement = _measurement(
            meter,
            limit=meter_memory.limit_bytes,
            read_back=read_back,
            implementations=dict(family.implementations(engine.module)),
            backward=gradients.backward(),
            notes=notes,
        )
        return meter.status, measurement, engine

    def _fail(self, error: BaseException) -> int:
        # A full disk may refuse the log too; the record then still says what went wrong.
        with contextlib.suppress(OSError):
            traceback.print_exception(error)
        return self._record_error(error)

    def _record_error(self, error: BaseException) -> int:
        phase, iteration = self._heart.phase, self._heart.iteration
        counted = phase in STEPPING
        described = rank_error(error, phase=phase, iteration=iteration if counted else None)
        if described.kind in ("oom_device", "oom_host"):
            described = dataclasses.replace(described, peak_memory=self._peak())
        return self._recorder.write("failed", error=described)

    def _peak(self) -> PeakMemory | None:
        """Return the peak so far; a device that failed may not tell it."""
        if self._memory is None:
            return None
        with contextlib.suppress(OSError, RuntimeError):
            peak = self._memory.peak_bytes()
            return PeakMemory(timed=peak, worst_case=peak, limit=self._memory.limit_bytes)
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Place:
    """Where this rank runs."""

    device: torch.device
    local_rank: int
    local_processes: int
    notes: dict[str, Any]


def _prepare(plan: Plan, rank: int) -> _Place:
    """Bind the device, set threads and seeds."""
    import torch

    from autotune.worker import allocator

    topology = plan.topology
    # Ranks that a fork server made are told theirs; nodes hold ranks in order, and as many each.
    per_node = topology.processes // topology.nodes
    local_rank = int(os.environ.setdefault("LOCAL_RANK", str(rank % per_node)))
    local = int(os.environ.setdefault("LOCAL_WORLD_SIZE", str(per_node)))
    os.environ.setdefault("RANK", str(rank))
    os.environ.setdefault("WORLD_SIZE", str(topology.processes))
    for name in plan.unset:
        os.environ.pop(name, None)
    os.environ.update(plan.environment)
    allocator.apply(plan)
    notes: dict[str, Any] = {}
    if topology.device == "cuda":
        torch.cuda.set_device(local_rank)
        device = torch.device("cuda", local_rank)
        notes["device"] = torch.cuda.get_device_name(device)
    else:
        device = torch.device("cpu")
    # A site's own setting stands; without one, ranks on one host share its cores.
    if not os.environ.get("OMP_NUM_THREADS", "").isdecimal():
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // max(1, local)))
    notes["torch"] = str(torch.__version__)
    # DeepSpeed calls collectives by names that torch 2.13 renamed: a line in the log for each call.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    random.seed(plan.training.model.seed)
    torch.manual_seed(plan.training.model.seed)
    return _Place(device=device, local_rank=local_rank, local_processes=local, notes=notes)


def _compare_digests(plan: Plan, device: torch.device) -> None:
    """Let every rank see every plan's hash.

    Raises:
        PlanMismatchError: They differ.
    """
    import torch
    import torch.distributed as dist

    mine = torch.tensor(list(bytes.fromhex(plan.digest)), dtype=torch.uint8, device=device)
    theirs = [torch.empty_like(mine) for _ in range(plan.topology.processes)]
    dist.all_gather(theirs, mine)
    different = [rank for rank, other in enumerate(theirs) if not torch.equal(other, mine)]
    if different:
        raise PlanMismatchError(
            f"the plan here has hash {plan.digest[:12]}…, and rank {different[0]} read another one"
        )


def _measurement(
    meter: Meter,
    *,
    limit: int,
    read_back: dict[str, ReadBack],
    implementations: dict[str, str],
    backward: dict[str, str],
    notes: dict[str, Any],
) -> RankMeasurement:
    return RankMeasurement(
        warmup_s=tuple(meter.warmup.mine_s),
        iteration_s=tuple(meter.timed.mine_s),
        window_s=meter.window_s,
        unsteady=meter.unsteady,
        checks=tuple(meter.checks),
        final_loss=meter.timed.losses[-1],
        losses=tuple(meter.losses),
        grad_norms=tuple(meter.norms),
        peak_first_bytes=meter.peak_first,
        peak_timed_bytes=meter.peak_timed,
        peak_worst_case_bytes=meter.peak_worst,
        worst_case_is_bound=meter.worst_is_bound,
        memory_limit_bytes=limit,
        compile_s=meter.compile_s,
        alloc_retries=meter.alloc_retries,
        recompiled_iterations=meter.recompiled,
        throttled=meter.throttled,
        read_back=read_back,
        implementations=implementations,
        backward=backward,
        notes=notes,
    )


def _tear_down(engine: Engine) -> None:
    """Close engine and process group, or end the process with its stacks in the log.

    The record is written: nothing that happens here costs a result. A gloo group was seen to wait
    for ever with the interpreter's lock held, so the limit is kept by a thread that needs no lock.
    """
    import torch.distributed as dist

    faulthandler.dump_traceback_later(TEARDOWN_S, exit=True, file=2)
    with contextlib.suppress(Exception):  # a peer may be gone already
        engine.close()
        dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()
