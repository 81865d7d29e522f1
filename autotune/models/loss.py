"""The loss that every trial trains on."""

from __future__ import annotations

import torch
from torch.nn import functional

IGNORED = -100
"""Label of a position that no loss is taken at: padding, fillers, tokens that are only read."""


def token_loss_sum(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy summed over all positions whose label counts, in float32.

    Args:
        logits: rows × length × vocabulary, any float format.
        labels: rows × length. The label of a position is the token that *follows* it: labels
            come shifted, so that the large logits need not be copied. :data:`IGNORED` counts
            nothing; where all are ignored the sum is 0 and still has a (zero) gradient, which a
            filler micro-step needs to take part in the engine's collectives.
    """
    return functional.cross_entropy(
        logits.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
