"""The keys of a space file, section by section, and what is said about one that does not belong."""

from __future__ import annotations

from typing import Final

from autotune.knobs import reasons
from autotune.space import reading
from autotune.space.catalogue import Catalogue
from autotune.space.nodes import Entry, Table
from autotune.space.place import Place

KEYS: Final[dict[str, tuple[str, ...]]] = {
    "": (
        "version",
        "backend",
        "workload",
        "topology",
        "fixed",
        "baseline",
        "params",
        "unverified",
        "constraints",
        "search",
    ),
    "workload": (
        "command",
        "samples_per_iteration",
        "model",
        "load_weights",
        "finetune",
        "global_batch",
        "batching",
        "micro_batch",
        "max_tokens",
        "activation_checkpointing",
        "checkpoint_every",
        "use_reentrant",
        "data",
        "optimizer",
        "precision",
    ),
    "workload.data": ("lengths", "max_length", "seed", "jsonl", "tokenizer"),
    "workload.optimizer": ("lr", "weight_decay", "gradient_clipping", "betas", "eps"),
    "workload.precision": ("compute", "master", "accumulate", "reduce"),
    "workload.finetune": ("lora", "qlora"),
    "workload.finetune.lora": ("rank", "alpha", "dropout", "targets"),
    "workload.finetune.qlora": ("rank", "alpha", "dropout", "targets"),
    "topology": ("processes",),
    "search": (
        "trials",
        "sampler",
        "seed",
        "max_trial_time",
        "memory_margin",
        "finalists",
        "allow",
    ),
}
"""Section to its keys. ``fixed``, ``baseline`` and ``params`` hold knobs."""

_MEANT: Final = {
    "model_name": "model",
    "name": "model",
    "batch_size": "global_batch",
    "parameters": "params",
    "knobs": "params",
    "space": "params",
    "n_trials": "trials",
    "timeout": "max_trial_time",
    "max_seq_length": "max_length",
    "seq_length": "max_length",
    "sequence_length": "max_length",
    "learning_rate": "lr",
    "max_grad_norm": "gradient_clipping",
    "world_size": "processes",
    "gpus": "processes",
    "r": "rank",
    "lora_r": "rank",
    "lora_rank": "rank",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "target_modules": "targets",
    "lora_target": "targets",
}


def entries(section: Table | None) -> list[Entry]:
    """The entries of a section without the names that start with ``x-``."""
    if section is None:
        return []
    return [entry for key, entry in section.entries.items() if not key.startswith("x-")]


def check_keys(section: Table | None, path: str, catalogue: Catalogue | None) -> None:
    """Refuse keys that ``path`` does not have.

    Raises:
        SpaceError: Names the nearest known key, or the section where the key belongs.
    """
    for entry in entries(section):
        if entry.key not in KEYS[path]:
            raise unknown_key(entry.key, entry.place, path, catalogue)


def unknown_key(key: str, place: Place, path: str, catalogue: Catalogue | None) -> Exception:
    """Return the error for a key that does not belong under ``path``."""
    where = f"under {path}" if path else "at the top level"
    message = f"unknown key {reading.shown(key)} {where}"
    known = KEYS.get(path, ())
    if path == "search" and key in ("objective", "metric"):
        hint = "the objective is seconds per iteration over one fixed global batch"
        return place.error(message, hint=hint)
    for refused in reasons.REFUSED.values():
        if key in refused:
            return place.error(message, hint=f"{key}: {refused[key]}")
    homes = [section for section, keys in KEYS.items() if key in keys and section != path]
    meant = _MEANT.get(key)
    if homes:
        home = homes[0]
        return place.error(
            message, hint=f"{key} belongs {'under ' + home if home else 'at the top level'}"
        )
    if catalogue is not None and catalogue.get(key) is not None:
        return place.error(
            message, hint=f"{key} is a knob: it belongs under params, fixed or baseline"
        )
    if meant in known:
        return place.error(message, hint=f"did you mean {meant}?")
    for section, keys in KEYS.items():
        if meant in keys:
            return place.error(message, hint=f"did you mean {section}.{meant}?".replace("?.", "?"))
    names = (*known, *catalogue.names) if catalogue is not None and not path else known
    close = reading.nearest(key, names)
    if close is not None and close not in known:
        return place.error(
            message, hint=f"did you mean the knob {close}? It belongs under params, fixed, baseline"
        )
    return place.error(message, hint=reading.suggestion(key, known))
