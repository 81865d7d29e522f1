"""Faults that begin when the check iterations are over (``support_trials.rank_main``)."""

from __future__ import annotations

from typing import Any

from faults import _wrap_build

ITERATIONS = 4
MICRO_STEPS = 4
"""Of an iteration on each of two ranks: 16 samples, two rows at a time."""


def gradients_four_times_later(rank: int) -> None:
    """Adam hides it from the losses."""

    def change(engine: Any) -> None:
        original, calls = engine.backward, []

        def backward(loss: Any, *, last: bool) -> None:
            calls.append(1)
            scale = 4.0 if len(calls) > ITERATIONS * MICRO_STEPS else 1.0
            original(loss * scale, last=last)

        engine.backward = backward

    _wrap_build(change)


def loss_a_fifth_off_later(rank: int) -> None:
    from autotune.models.causal_lm import CausalLmFamily

    original, calls = CausalLmFamily.loss_sum, []

    def loss_sum(self: Any, module: Any, batch: Any) -> Any:
        calls.append(1)
        scale = 1.2 if len(calls) > ITERATIONS * MICRO_STEPS else 1.0
        return original(self, module, batch) * scale

    CausalLmFamily.loss_sum = loss_sum


def bucket_changed_on_the_way(rank: int) -> None:
    """The engine takes the value as it is built, and another one when it runs."""

    def change(engine: Any) -> None:
        original, calls = engine.step, []

        def step() -> Any:
            calls.append(1)
            if len(calls) == ITERATIONS:
                engine._engine.optimizer.reduce_bucket_size = 77
            return original()

        engine.step = step

    _wrap_build(change)


def weights_that_stay(rank: int) -> None:
    """All is computed, and no weight changes: the optimizer's step does nothing."""
    import torch

    def change(engine: Any) -> None:
        torch.optim.AdamW.step = lambda self, closure=None: None

    _wrap_build(change)
