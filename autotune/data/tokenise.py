"""Tokenise the stream's samples: ``python -m autotune.data.tokenise``, a process of its own.

Reads a :class:`~autotune.data.samples.TokenRequest` as JSON on standard input, writes the token
file and its summary, and answers with one JSON object on standard output: empty, or ``error``,
``hint`` and ``exit_code``. What libraries print goes to standard error.

Token file::

    {"samples": [{"ids": [1, 2, 3], "trained": [[1, 3]]}, …]}

``trained`` are half-open spans of tokens whose prediction has a loss:

- ``messages``: the assistant's tokens where the chat template marks them
  (``{% generation %}``), else all tokens;
- ``prompt`` and ``completion``: the completion and the end-of-sequence token;
- ``text``: all tokens. An end-of-sequence token is appended, as trainers do it.

Samples are taken in an order drawn from the seed. One that has nothing to train on within
``max_length`` is passed over and the next one takes its place.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from autotune.contract import codec, jsonfile
from autotune.data.jsonl import JsonLines
from autotune.data.samples import TokenRequest, TokenSummary
from autotune.errors import AutotuneError, EnvironmentFault, InputError

HUB_TIMEOUT_S: Final = 10.0
"""How long the hub may take to answer at all."""

_GENERATION: Final = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
"""The tag by which a chat template marks what the assistant says."""


def tokenise(request: TokenRequest) -> None:
    """Write the token file and the summary.

    Raises:
        InputError: The file or the tokenizer is unusable, there are too few samples, or the
            tokenizer has ids that the model does not know.
        EnvironmentFault: The hub is not reached, or a file cannot be written.
    """
    lines = JsonLines(Path(request.jsonl))
    if len(lines) < request.num_samples:
        raise InputError(
            f"{request.jsonl} has {len(lines)} samples; the cycle of global batches needs "
            f"{request.num_samples}",
            hint="give more samples or lower global_batch",
        )
    encoder = Encoder(load_tokenizer(request.tokenizer), Path(request.jsonl))
    entries: list[dict[str, Any]] = []
    truncated = passed_over = 0
    for line, sample in lines.read(_shuffled(len(lines), request.seed)):
        ids, trained = encoder.encode(sample, line)
        is_long = len(ids) > request.max_length
        ids, trained = ids[: request.max_length], trained[: request.max_length]
        if not any(trained[1:]):
            passed_over += 1
            continue
        _check_ids(ids, request, f"{request.jsonl}:{line}")
        truncated += is_long
        entries.append({"ids": ids, "trained": _spans(trained)})
        if len(entries) == request.num_samples:
            break
    if len(entries) < request.num_samples:
        raise InputError(
            f"{request.jsonl}: only {len(entries)} of {len(lines)} samples have a token to train "
            f"on within max_length {request.max_length}; {request.num_samples} are needed",
            hint="raise max_length, give more samples or lower global_batch",
        )
    jsonfile.write_text(Path(request.token_file), jsonfile.canonical({"samples": entries}))
    summary = TokenSummary(
        lengths=tuple(len(entry["ids"]) for entry in entries),
        dataset_samples=len(lines),
        truncated=truncated,
        passed_over=passed_over,
    )
    jsonfile.write_json(Path(request.summary_file), codec.to_json(summary))


class Encoder:
    """Samples to token ids."""

    def __init__(self, tokenizer: Any, path: Path) -> None:
        self._tokenizer = tokenizer
        self._path = path
        template = getattr(tokenizer, "chat_template", None)
        if isinstance(template, Mapping):
            template = template.get("default")
        self._template = template if isinstance(template, str) else None
        self._marks_assistant = bool(_GENERATION.search(self._template or ""))

    def encode(self, sample: Mapping[str, Any], line: int) -> tuple[list[int], list[bool]]:
        """Return the ids of a sample and, for each, whether it is trained on.

        Raises:
            InputError: The chat template is missing or refuses the messages.
        """
        if "messages" in sample:
            return self._chat(sample["messages"], f"{self._path}:{line}")
        end = self._tokenizer.eos_token_id
        tail = [] if end is None else [int(end)]
        if "prompt" in sample:
            prompt = self._ids(sample["prompt"], special=True)
            completion = self._ids(sample["completion"], special=False) + tail
            return prompt + completion, [False] * len(prompt) + [True] * len(completion)
        ids = self._ids(sample["text"], special=True)
        ids = ids if ids[-1:] == tail else ids + tail
        return ids, [True] * len(ids)

    def _ids(self, text: str, *, special: bool) -> list[int]:
        encoded = self._tokenizer(text, add_special_tokens=special, verbose=False)
        return [int(token) for token in encoded["input_ids"]]

    def _chat(self, messages: Sequence[Any], where: str) -> tuple[list[int], list[bool]]:
        if self._template is None:
            raise InputError(
                f"{where}: the tokenizer has no chat template for 'messages'",
                hint='give a chat tokenizer, or samples of the form {"text": "…"}',
            )
        try:
            encoded = self._tokenizer.apply_chat_template(
                messages,
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=self._marks_assistant,
            )
        except Exception as error:
            raise InputError(
                f"{where}: the tokenizer's chat template refuses the messages: {error}"
            ) from error
        ids = [int(token) for token in encoded["input_ids"]]
        if not self._marks_assistant:
            return ids, [True] * len(ids)
        return ids, [bool(mark) for mark in encoded["assistant_masks"]]


def load_tokenizer(name: str) -> Any:
    """Return the tokenizer of a folder or hub id.

    Raises:
        InputError: The folder, or the repository, has no usable tokenizer.
        EnvironmentFault: The hub is not reached.
    """
    if not Path(name).is_dir():
        name = _from_hub(name)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=True)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"no tokenizer can be loaded from {name}: {reason}",
            hint="give a folder with tokenizer.json and tokenizer_config.json",
        ) from error


def _from_hub(name: str) -> str:
    """Return the local folder of a hub tokenizer; one question decides whether to wait."""
    import huggingface_hub
    from huggingface_hub import errors

    patterns = ["*.json", "*.model", "*.txt", "*.jinja"]
    try:
        huggingface_hub.HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
        return str(huggingface_hub.snapshot_download(name, allow_patterns=patterns))
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise InputError(
            f"tokenizer {name!r} is neither a folder that exists nor a repository on the hub",
            hint="give the folder of a tokenizer, or a hub id (org/name)",
        ) from error
    except Exception as error:
        try:
            return str(
                huggingface_hub.snapshot_download(
                    name, allow_patterns=patterns, local_files_only=True
                )
            )
        except Exception:
            raise EnvironmentFault(
                f"tokenizer {name!r} is no folder here, and the hub was not reached "
                f"({type(error).__name__})",
                hint="give the folder of a tokenizer",
            ) from error


def _shuffled(count: int, seed: int) -> Iterator[int]:
    """Yield 0 … count - 1 in an order drawn from the seed.

    Fisher and Yates over ``random()``, the one method whose sequence Python promises to keep.
    """
    generator = random.Random(seed)  # noqa: S311 - no secret
    order = list(range(count))
    for first in range(count):
        other = first + int(generator.random() * (count - first))
        order[first], order[other] = order[other], order[first]
        yield order[first]


def _spans(trained: Sequence[bool]) -> list[list[int]]:
    spans: list[list[int]] = []
    for position, is_trained in enumerate(trained):
        if not is_trained:
            continue
        if spans and spans[-1][1] == position:
            spans[-1][1] = position + 1
        else:
            spans.append([position, position + 1])
    return spans


def _check_ids(ids: Sequence[int], request: TokenRequest, where: str) -> None:
    if max(ids) >= request.vocab_size:
        raise InputError(
            f"{where}: the tokenizer gives token id {max(ids)}, and the model's vocabulary ends "
            f"at {request.vocab_size - 1}",
            hint="use the tokenizer that belongs to the model, or a model with a larger vocabulary",
        )


def main() -> int:
    """Read the request, answer, and return the exit code."""
    answer_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not spoil the answer
    answer: dict[str, Any] = {}
    code = 0
    try:
        tokenise(codec.from_json(TokenRequest, json.load(sys.stdin), where="request"))
    except AutotuneError as error:
        answer = {"error": error.message, "hint": error.hint, "exit_code": error.exit_code}
        code = error.exit_code
    with answer_to:
        json.dump(answer, answer_to)
    return code


if __name__ == "__main__":
    sys.exit(main())
