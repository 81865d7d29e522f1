"""The fixed part of a space file: the sections that are no knobs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from autotune.contract.plan import DType, Optimizer, Precision
from autotune.space import finetuning, reading
from autotune.space.catalogue import Catalogue
from autotune.space.keys import KEYS, check_keys
from autotune.space.model import DataSource, WorkloadSpec
from autotune.space.nodes import Node, Scalar, Table

KNOB_SECTIONS: Final = ("params", "fixed", "baseline")
LENGTHS: Final = ("ultrachat-like",)
MAX_GLOBAL_BATCH: Final = 2**16
"""Every plan lists its samples one by one."""
MAX_LENGTH: Final = 2**24
"""Tokens of a sample; beyond any context that is trained on."""
MIN_EPS: Final = 1e-37
"""Below float32's smallest normal number it would count as 0."""
DTYPES: Final = get_args(DType)
WORKLOAD_KNOBS: Final = (
    "batching",
    "micro_batch",
    "max_tokens",
    "activation_checkpointing",
    "checkpoint_every",
    "use_reentrant",
)
"""Knobs that ``workload:`` may state: as in ``baseline:``."""


def workload_table(root: Table) -> Table:
    """Return the section ``workload:``.

    Raises:
        SpaceError: It is missing or empty.
    """
    section = _required(root, "workload", "")
    table = reading.table(section, "workload")
    if table is None:
        raise section.place.error(
            "workload is empty", hint="it needs at least model and global_batch"
        )
    return table


def workload(root: Table, catalogue: Catalogue, base: Path) -> WorkloadSpec:
    """Read ``workload:`` without its knobs.

    Raises:
        SpaceError: A required key is missing, or a value is wrong.
    """
    table = workload_table(root)
    check_keys(table, "workload", catalogue)
    if "samples_per_iteration" in table.entries:
        raise table.entries["samples_per_iteration"].place.error(
            "samples_per_iteration goes with a command, and workload has none",
            hint="without a command the same number is global_batch",
        )
    finetune, lora = finetuning.read(table.get("finetune"), catalogue)
    return WorkloadSpec(
        model=reading.text(_required(table, "model", "workload"), "workload.model"),
        load_weights=value(
            table, "load_weights", False, lambda n: reading.boolean(n, "workload.load_weights")
        ),
        finetune=finetune,
        lora=lora,
        global_batch=reading.integer(
            _required(table, "global_batch", "workload"),
            "workload.global_batch",
            low=1,
            high=MAX_GLOBAL_BATCH,
        ),
        data=_data(reading.table(table.get("data"), "workload.data"), catalogue, base),
        optimizer=optimizer(table, catalogue),
        precision=precision(table, catalogue),
    )


def _required(table: Table, key: str, path: str) -> Node:
    node = table.get(key)
    full = f"{path}.{key}" if path else key
    if node is None:
        hints = {
            "version": "write version: 1",
            "backend": "write backend: zero3, or fsdp2",
            "workload": "write workload: {model: qwen3-tiny, global_batch: 16}",
            "params": "tune for example params: {micro_batch: {choices: [1, 2, 4]}}",
            "workload.model": "write for example model: qwen3-tiny",
            "workload.global_batch": "it is the number of samples of one iteration; without it "
            "seconds per iteration would compare unequal work",
            "workload.samples_per_iteration": "it is the number of samples of one optimizer step "
            "over all processes: each trial must do the same work",
        }
        raise table.place.error(f"the required key {full} is missing", hint=hints.get(full))
    return node


def value(table: Table | None, key: str, default: Any, read: Callable[[Node], Any]) -> Any:
    """Return ``table[key]`` as ``read`` reads it, or ``default`` where the key is absent."""
    node = None if table is None else table.get(key)
    if node is None:
        return default
    if isinstance(node, Scalar) and not node.quoted and node.text == "":
        raise node.place.error(f"{key} has no value", hint=f"remove it for the default, {default}")
    return read(node)


def _data(table: Table | None, catalogue: Catalogue, base: Path) -> DataSource:
    check_keys(table, "workload.data", catalogue)
    what = "workload.data."
    jsonl = value(table, "jsonl", None, lambda n: reading.text(n, what + "jsonl"))
    lengths = value(table, "lengths", None, lambda n: reading.text(n, what + "lengths", LENGTHS))
    tokenizer = value(table, "tokenizer", None, lambda n: reading.text(n, what + "tokenizer"))
    if table is not None:
        if jsonl is not None and lengths is not None:
            raise table.entries["jsonl"].place.error(
                "workload.data has both lengths and jsonl", hint="keep one of them"
            )
        if jsonl is not None and tokenizer is None:
            raise table.entries["jsonl"].place.error(
                "workload.data.jsonl needs a tokenizer",
                hint="write tokenizer: with a folder or a hub id",
            )
        if jsonl is None and tokenizer is not None:
            raise table.entries["tokenizer"].place.error(
                "workload.data.tokenizer is used with jsonl only", hint="remove it, or give jsonl"
            )
    return DataSource(
        lengths=None if jsonl is not None else (lengths or LENGTHS[0]),
        jsonl=None if jsonl is None else str(_located(jsonl, base)),
        tokenizer=None if tokenizer is None else _tokenizer(tokenizer, base),
        max_length=value(
            table,
            "max_length",
            8192,
            lambda n: reading.integer(n, what + "max_length", low=2, high=MAX_LENGTH),
        ),
        seed=value(
            table, "seed", 0, lambda n: reading.integer(n, what + "seed", low=0, high=2**63 - 1)
        ),
    )


def _located(name: str, base: Path) -> Path:
    """A file beside the space file, else one in the current folder."""
    given = Path(name).expanduser()
    beside = (base / given).absolute()
    return beside if _exists(beside) or not _exists(given) else given.absolute()


def _tokenizer(name: str, base: Path) -> str:
    located = _located(name, base)
    return str(located) if _exists(located) else name


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def optimizer(section: Table, catalogue: Catalogue) -> Optimizer:
    """Read ``workload.optimizer``."""
    table = reading.table(section.get("optimizer"), "workload.optimizer")
    check_keys(table, "workload.optimizer", catalogue)
    what = "workload.optimizer."

    def number(key: str, default: float, low: float = 0) -> float:
        return float(value(table, key, default, lambda n: reading.real(n, what + key, low=low)))

    return Optimizer(
        lr=number("lr", 1e-5),
        weight_decay=number("weight_decay", 0.0),
        gradient_clipping=number("gradient_clipping", 1.0),
        betas=value(table, "betas", (0.9, 0.999), _betas),
        # With eps 0 a weight that never had a gradient, such as a token's row, becomes 0 / 0.
        eps=number("eps", 1e-8, low=MIN_EPS),
    )


def _betas(node: Node) -> tuple[float, ...]:
    items = reading.sequence(node, "workload.optimizer.betas")
    if len(items) != 2:
        raise node.place.error("workload.optimizer.betas needs two numbers, as in [0.9, 0.999]")
    values = tuple(reading.real(item, "a beta", low=0) for item in items)
    for beta, item in zip(values, items, strict=True):
        if beta >= 1:
            raise item.place.error(f"a beta must be below 1, found {beta}")
    return values


def precision(section: Table, catalogue: Catalogue) -> Precision:
    """Read ``workload.precision``: a word for all of it, or the mapping itself."""
    node = section.get("precision")
    if node is not None and isinstance(node, Table):
        check_keys(node, "workload.precision", catalogue)
        if node.get("compute") is None:
            raise node.place.error("workload.precision needs compute", hint="write compute: bf16")
        formats = {
            key: value(
                node, key, "fp32", functools.partial(_dtype, what=f"workload.precision.{key}")
            )
            for key in KEYS["workload.precision"]
        }
        return Precision(**formats)
    compute = "fp32" if node is None else _dtype(node, "workload.precision")
    return Precision(compute=compute, master="fp32", accumulate="fp32", reduce="fp32")


def _dtype(node: Node, what: str) -> Literal["fp32", "bf16"]:
    found = reading.scalar(node, what, f"one of {', '.join(DTYPES)}")
    names = {"float32": "fp32", "bfloat16": "bf16"}
    if found.text in names:
        raise found.place.error(f"{what} is written {names[found.text]} here")
    return cast("DType", reading.text(found, what, DTYPES))


def processes(root: Table, catalogue: Catalogue) -> int | None:
    """Read ``topology.processes``; ``None`` is ``auto``."""
    table = reading.table(root.get("topology"), "topology")
    check_keys(table, "topology", catalogue)
    node = None if table is None else table.get("processes")
    if node is None or (isinstance(node, Scalar) and node.text == "auto"):
        return None
    what = "topology.processes"
    if isinstance(node, Scalar) and not node.text[:1].isdigit() and node.text[:1] not in "+-.":
        raise node.place.error(f"{what} needs auto or a number, found {reading.describe(node)}")
    return reading.integer(node, what, low=1, high=1_000_000)


def required(table: Table, key: str, path: str = "") -> Node:
    """Return a required key of the section ``path``; at the top level without one.

    Raises:
        SpaceError: It is missing.
    """
    return _required(table, key, path)
