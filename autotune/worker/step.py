"""One iteration: the micro-steps of a global batch, their loss, and the update."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from autotune.backends.base import Engine
from autotune.data.packing import MicroBatch
from autotune.data.stream import TokenStream
from autotune.models.family import ModelFamily

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Iteration:
    """What one iteration leaves, still on the device."""

    loss: torch.Tensor
    """This rank's ``Σ L · W / N``, so that the mean over ranks is the mean token loss."""
    grad_norm: torch.Tensor | float
    """Global norm before clipping."""


class Stepper:
    """Runs iterations of the stream on one rank; ``moved`` hears of every micro-step."""

    def __init__(
        self,
        *,
        engine: Engine,
        family: ModelFamily,
        stream: TokenStream,
        processes: int,
        device: torch.device,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._family = family
        self._stream = stream
        self._processes = processes
        self._device = device
        self._moved = moved

    def iterate(self, index: int) -> Iteration:
        """Run iteration ``index`` of the stream. Never waits for the device by itself."""
        batches = self._stream.micro_batches(index)
        scale = self._processes / self._stream.target_tokens(index)
        total = torch.zeros((), dtype=torch.float32, device=self._device)
        for number, batch in enumerate(batches, start=1):
            total += self._micro_step(batch, scale, last=number == len(batches))
        return Iteration(loss=total, grad_norm=self._engine.step())

    def probe(self, micro_steps: int) -> None:
        """Run the worst-case micro-step once, as an iteration would meet it.

        The update after it needs what every timed update needed, so there is none.

        Where an iteration has several micro-steps the stream's smallest one runs before it: its
        gradients are then held, unreduced, while the worst case needs the most.
        """
        if micro_steps > 1:
            smallest = min(self._stream.micro_batches(0), key=lambda batch: batch.labels.numel())
            self._micro_step(smallest, 1.0 / self._stream.target_tokens(0), last=False)
        batch = self._stream.worst_case()
        self._micro_step(batch, 1.0 / batch.labels.numel(), last=True)

    def exchange(self, values: Sequence[float]) -> torch.Tensor:
        """Return every rank's ``values`` as ranks × values (float64, on the host)."""
        mine = torch.tensor(list(values), dtype=torch.float64, device=self._device)
        theirs = [torch.empty_like(mine) for _ in range(self._processes)]
        dist.all_gather(theirs, mine)
        return torch.stack(theirs).cpu()

    def _micro_step(self, batch: MicroBatch, scale: float, *, last: bool) -> torch.Tensor:
        self._engine.before_forward(last=last)
        loss = self._family.loss_sum(self._engine.model, batch) * scale
        self._engine.backward(loss, last=last)
        self._moved()
        return loss.detach()
