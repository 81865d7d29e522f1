"""``workload.finetune``: which weights are trained."""

from __future__ import annotations

from typing import Final, cast, get_args

from autotune.contract.plan import Finetune
from autotune.space import reading
from autotune.space.catalogue import Catalogue
from autotune.space.keys import check_keys, entries
from autotune.space.model import LoraSpec
from autotune.space.nodes import Items, Node, Table

WORDS: Final = get_args(Finetune)
ALL_LINEAR: Final = "all-linear"
MAX_RANK: Final = 2**16
"""Wider than any linear layer whose update an adapter could be smaller than."""
_WHERE: Final = "workload.finetune"


def read(node: Node | None, catalogue: Catalogue) -> tuple[Finetune, LoraSpec | None]:
    """Return the kind of fine-tuning, and the adapters' settings where there are adapters.

    Nothing is ``full``. A word takes every setting at its default; ``{lora: {…}}`` and
    ``{qlora: {…}}`` state some.

    Raises:
        SpaceError: Another word or key, a wrong value, or dropout.
    """
    if node is None:
        return "full", None
    if not isinstance(node, Table):
        kind = cast("Finetune", reading.text(node, "finetune", WORDS))
        return kind, None if kind == "full" else LoraSpec()
    check_keys(node, _WHERE, catalogue)
    chosen = entries(node)
    if len(chosen) != 1:
        raise node.place.error(
            f"{_WHERE} needs one of lora and qlora, found {len(chosen)} of them",
            hint="write finetune: {lora: {rank: 16, alpha: 32}}, or finetune: full",
        )
    kind = cast("Finetune", chosen[0].key)
    path = f"{_WHERE}.{kind}"
    return kind, _lora(reading.table(chosen[0].value, path), path, catalogue)


def _lora(table: Table | None, path: str, catalogue: Catalogue) -> LoraSpec:
    check_keys(table, path, catalogue)
    given = {entry.key: entry.value for entry in entries(table)}
    settings: dict[str, int | float | tuple[str, ...] | None] = {}
    if "rank" in given:
        settings["rank"] = reading.integer(given["rank"], f"{path}.rank", low=1, high=MAX_RANK)
    if "alpha" in given:
        settings["alpha"] = _alpha(given["alpha"], f"{path}.alpha")
    if "dropout" in given and reading.real(given["dropout"], f"{path}.dropout", low=0) > 0:
        raise given["dropout"].place.error(
            f"{path}.dropout must be 0: with dropout no two trials compute the same",
            hint="remove it here; your own training may have it",
        )
    if "targets" in given:
        settings["targets"] = _targets(given["targets"], f"{path}.targets")
    return LoraSpec(**settings)  # type: ignore[arg-type]  # each was read by its type


def _alpha(node: Node, what: str) -> float:
    alpha = reading.real(node, what)
    if alpha <= 0:
        raise node.place.error(
            f"{what} must be above 0: the adapters would change nothing, found {alpha:g}"
        )
    return alpha


def _targets(node: Node, what: str) -> tuple[str, ...] | None:
    """Names of linear layers as peft matches them; ``None`` for all of them."""
    if not isinstance(node, Items):
        reading.text(node, what, (ALL_LINEAR,))
        return None
    names = [reading.text(item, what) for item in node.items]
    if not names:
        raise node.place.error(f"{what} is an empty list", hint=f"write {ALL_LINEAR} for all")
    reading.unique(names, node.items, what)
    return tuple(sorted(names))
