"""Token ids of single samples: drawn from the sample's number, or read from the token file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import torch

from autotune.contract.plan import Samples
from autotune.errors import RecordError


@dataclasses.dataclass(frozen=True)
class Sample:
    """One sample."""

    ids: torch.Tensor
    """int64, one per token."""
    trained: torch.Tensor
    """bool, one per token: whether predicting this token has a loss (never the first one's)."""


def synthetic_sample(length: int, *, index: int, seed: int, vocab_size: int) -> Sample:
    """Draw the tokens of sample ``index``: equal for every cut, rank and world size."""
    hashed = hashlib.sha256(f"tokens:{seed}:{index}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(hashed[:8], "big") >> 1)
    ids = torch.randint(vocab_size, (length,), generator=generator)
    return Sample(ids, torch.ones(length, dtype=torch.bool))


def read_token_file(samples: Samples, vocab_size: int) -> tuple[Sample, ...]:
    """Return all samples of the stream's token file (see ``autotune.data.tokenise``).

    Raises:
        RecordError: The file is not the one that the plan was made with, or does not fit it.
    """
    assert samples.token_file is not None
    path = Path(samples.token_file)
    raw = path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != samples.token_file_sha256:
        raise RecordError(f"{path} was changed after the plan was made")
    read = []
    for number, entry in enumerate(json.loads(raw)["samples"]):
        ids = torch.tensor(entry["ids"], dtype=torch.int64)
        trained = torch.zeros(len(ids), dtype=torch.bool)
        for first, end in entry["trained"]:
            trained[first:end] = True
        if len(ids) != samples.lengths[number]:
            raise RecordError(f"{path}: sample {number} has another length than the plan says")
        if int(ids.max()) >= vocab_size or int(ids.min()) < 0:
            raise RecordError(f"{path}: sample {number} has token ids outside the vocabulary")
        read.append(Sample(ids, trained))
    return tuple(read)
