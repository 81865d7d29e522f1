"""The stream of samples that every trial of a study cycles through. No torch."""

from __future__ import annotations

from pathlib import Path

from autotune.contract.plan import Samples
from autotune.data.lengths import draw_lengths
from autotune.errors import InputError


def make_samples(
    *,
    lengths: str | None,
    jsonl: str | None,
    tokenizer: str | None,
    max_length: int,
    seed: int,
    num_samples: int,
    vocab_size: int,
    folder: Path | None,
) -> Samples:
    """Return the stream's samples: drawn, or tokenised from the user's file.

    Args:
        lengths: Name of a length distribution; ``None`` when ``jsonl`` is given.
        jsonl: JSON Lines file; ``None`` when ``lengths`` is given.
        tokenizer: Folder or hub id of the tokenizer for ``jsonl``.
        max_length: Longest sample in tokens; longer ones of a file are cut off.
        seed: Order of a file's samples; lengths and tokens of drawn ones.
        num_samples: Global batch × distinct batches.
        vocab_size: Token ids that the model knows.
        folder: The study's data folder, for the token file of ``jsonl``.

    Raises:
        InputError: The source is unusable, too small, or does not fit the model.
        EnvironmentFault: The tokenizer cannot be loaded, or the folder cannot be written.
    """
    if (lengths is None) == (jsonl is None):
        raise InputError("workload.data needs either lengths or jsonl, not both")
    if jsonl is not None:
        raise InputError("jsonl data comes with the next commit")
    assert lengths is not None
    drawn = draw_lengths(lengths, num_samples=num_samples, max_length=max_length, seed=seed)
    return Samples(lengths=drawn, max_length=max_length, seed=seed, source=lengths)
