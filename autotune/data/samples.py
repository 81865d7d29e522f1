"""The stream of samples that every trial of a study cycles through.

Samples of a file are tokenised in a process of their own: the coordinator never imports
transformers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import autotune
from autotune.contract import codec, jsonfile
from autotune.contract.plan import Samples
from autotune.data.lengths import draw_lengths
from autotune.errors import AutotuneError, EnvironmentFault, InputError, RecordError

FORMAT: Final = 1
"""Raised whenever the same request would give other tokens."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenRequest:
    """What the tokenising process is asked for."""

    jsonl: str
    tokenizer: str
    max_length: int
    seed: int
    num_samples: int
    vocab_size: int
    token_file: str
    """Where the tokens go."""
    summary_file: str
    """Where the :class:`TokenSummary` goes, after the tokens."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenSummary:
    """What the tokenising process found."""

    lengths: tuple[int, ...]
    """Tokens of each sample, in stream order."""
    dataset_samples: int
    """Samples in the whole file."""
    truncated: int
    """Samples of the stream that were cut off at ``max_length``."""
    passed_over: int
    """Samples that had no token to train on, whose place others took."""


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
        max_length: Longest sample in tokens. Longer ones of a file lose their end, as trainers
            do it; ``truncated`` counts them.
        seed: Order of a file's samples; lengths and tokens of drawn ones.
        num_samples: Samples in the cycle: global batch × distinct batches.
        vocab_size: Token ids that the model knows.
        folder: The study's data folder, for the token file of ``jsonl``.

    Raises:
        InputError: The source is unusable, too small, or does not fit the model.
        EnvironmentFault: The tokenizer cannot be reached, or the folder cannot be written.
    """
    if (lengths is None) == (jsonl is None):
        raise InputError("workload.data needs exactly one of lengths and jsonl")
    if max_length < 2:
        raise InputError(f"max_length {max_length} is too short: a sample has at least 2 tokens")
    if lengths is not None:
        drawn = draw_lengths(lengths, num_samples=num_samples, max_length=max_length, seed=seed)
        return Samples(lengths=drawn, max_length=max_length, seed=seed, source=lengths)
    assert jsonl is not None
    assert folder is not None, "a JSON Lines source needs a folder for its tokens"
    if tokenizer is None:
        raise InputError(
            f"workload.data: {jsonl} needs a tokenizer",
            hint="add tokenizer: FOLDER_OR_HUB_ID beside jsonl",
        )
    request = _request(jsonl, tokenizer, max_length, seed, num_samples, vocab_size, folder)
    summary = _read_summary(request)
    if summary is None:
        _run(request)
        summary = _read_summary(request)
    if summary is None:
        raise EnvironmentFault(f"{request.token_file} vanished after it was written")
    return Samples(
        lengths=summary.lengths,
        max_length=max_length,
        seed=seed,
        source=jsonl,
        token_file=request.token_file,
        token_file_sha256=_hash(Path(request.token_file)),
        dataset_samples=summary.dataset_samples,
        truncated=summary.truncated,
    )


def _request(
    jsonl: str,
    tokenizer: str,
    max_length: int,
    seed: int,
    num_samples: int,
    vocab_size: int,
    folder: Path,
) -> TokenRequest:
    """Name the token file after all that decides its content, so that it is made only once."""
    path = Path(os.path.expanduser(jsonl)).absolute()  # noqa: PTH111 - never raises
    if not os.path.isfile(path):  # noqa: PTH113 - unlike Path, it never raises
        raise InputError(f"workload.data.jsonl: there is no file {path}")
    name, stamps = tokenizer, [_stamp(path)]
    local = os.path.expanduser(tokenizer)  # noqa: PTH111 - the same
    if os.path.isdir(local):  # noqa: PTH112 - the same
        name = str(Path(local).absolute())
        try:
            stamps += [_stamp(file) for file in sorted(Path(name).iterdir()) if file.is_file()]
        except OSError as error:
            raise InputError(
                f"the tokenizer's folder {name} cannot be read: {error.strerror or error}"
            ) from error
    key = jsonfile.digest([FORMAT, name, max_length, seed, num_samples, vocab_size, stamps])[:16]
    folder = folder.absolute()
    return TokenRequest(
        jsonl=str(path),
        tokenizer=name,
        max_length=max_length,
        seed=seed,
        num_samples=num_samples,
        vocab_size=vocab_size,
        token_file=str(folder / f"tokens-{key}.json"),
        summary_file=str(folder / f"tokens-{key}.summary.json"),
    )


def _stamp(path: Path) -> list[Any]:
    status = path.stat()
    return [str(path), status.st_size, status.st_mtime_ns]


def _read_summary(request: TokenRequest) -> TokenSummary | None:
    path = Path(request.summary_file)
    try:
        data = jsonfile.read_json(path)
        summary = codec.from_json(TokenSummary, data, where=str(path))
    except (OSError, RecordError):
        return None
    return summary if Path(request.token_file).is_file() else None


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _run(request: TokenRequest) -> None:
    """Run ``autotune.data.tokenise``; raise the error that it reports."""
    root = str(Path(autotune.__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([root, inherited] if inherited else [root]),
        "PYTHONIOENCODING": "utf-8",
    }
    # -P: a folder named autotune in the working directory must not shadow the package.
    done = subprocess.run(
        [sys.executable, "-P", "-m", "autotune.data.tokenise"],
        input=json.dumps(codec.to_json(request)),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
        check=False,
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise EnvironmentFault(f"tokenising {request.jsonl} failed: {lines[-1]}")
    if answer.get("error"):
        raise _rebuilt(answer)


def _rebuilt(answer: dict[str, Any]) -> AutotuneError:
    kind = InputError if answer.get("exit_code") == InputError.exit_code else EnvironmentFault
    return kind(str(answer["error"]), hint=answer.get("hint"))
