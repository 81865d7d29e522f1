"""What tests plant in a rank before it runs (``support_trials.rank_main``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def count_gathers(rank: int) -> None:
    """Count FSDP2's gathers in the second iteration, and write their number beside the records."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as module

    from autotune.worker import session, step

    calls = [0]
    original = module.foreach_all_gather

    def counted(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        return original(*arguments, **named)

    module.foreach_all_gather = counted
    iterate = step.Stepper.iterate

    def watched(self: Any, index: int) -> Any:
        before = calls[0]
        result = iterate(self, index)
        if index == 1 and rank == 0:
            folder = _FOLDER[0]
            (folder / "gathers").write_text(str(calls[0] - before))
        return result

    step.Stepper.iterate = watched
    run = session.run_rank

    def noted(folder: Path, rank: int) -> int:
        _FOLDER.append(folder)
        return run(folder, rank)

    session.run_rank = noted


_FOLDER: list[Path] = []


def other_shapes_when_recomputed(rank: int) -> None:
    """A layer keeps one more number of each token's state when it runs a second time."""
    import torch
    from transformers.models.qwen3 import modeling_qwen3

    forward = modeling_qwen3.Qwen3MLP.forward
    runs: dict[int, int] = {}

    def uneven(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        runs[id(self)] = runs.get(id(self), 0) + 1
        weight = hidden.new_ones(runs[id(self)]).requires_grad_()
        return forward(self, hidden) + (weight * weight).sum() * 0

    modeling_qwen3.Qwen3MLP.forward = uneven


def one_token_on_rank_1(rank: int) -> None:
    """Every token of rank 1 is the same, so few of the experts have any."""
    from autotune.data import stream

    if rank != 1:
        return
    prepare = stream.TokenStream.prepare

    def repeated(self: Any) -> None:
        prepare(self)
        for index in range(len(self._schedule.batches)):
            for batch in self.micro_batches(index):
                batch.input_ids.fill_(7)

    stream.TokenStream.prepare = repeated
