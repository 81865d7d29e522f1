"""``torch.nn.attention.varlen`` as an attention function of transformers. Imports torch.

The signature grew: torch 2.10 has ``is_causal``, later ones ``window_size`` and ``scale``, 2.12
``enable_gqa``. What is missing is done here.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch

from autotune.models.kernels.attention import boundaries


def varlen_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    dropout: float = 0.0,
    position_ids: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    **_others: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within the samples of each row.

    Args:
        module: The attention layer.
        query: rows × heads × length × head size; keys and values with their own, fewer heads.
        key: See ``query``.
        value: See ``query``.
        attention_mask: Rows padded on the right need none: no real token looks ahead.
        scaling: Factor of the scores.
        sliding_window: Keys that a query sees, itself included.
        dropout: Must be 0.
        position_ids: Those of one packed row restart at each sample.
        cu_seq_lens_q: Cumulative lengths of the samples, where the batch has them.
        max_length_q: Length of the longest of them, or more.
    """
    del module, attention_mask
    if dropout:
        raise ValueError("varlen attention has no dropout")
    rows, heads, length, size = query.shape
    if cu_seq_lens_q is None:
        cu_seq_lens_q = _boundaries(rows, length, position_ids, query.device)
    options = _options(scaling, size, sliding_window)
    if key.shape[1] != heads and "enable_gqa" not in options:
        groups = heads // key.shape[1]
        key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    flat = [each.transpose(1, 2).reshape(rows * length, -1, size) for each in (query, key, value)]
    longest = length if max_length_q is None else int(max_length_q)
    output = _varlen()(*flat, cu_seq_lens_q, cu_seq_lens_q, longest, longest, **options)
    return output.view(rows, length, heads, size), None


def _boundaries(
    rows: int, length: int, position_ids: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    if rows == 1 and position_ids is not None:
        return boundaries(position_ids)
    return torch.arange(0, (rows + 1) * length, length, dtype=torch.int32, device=device)


def _options(scaling: float | None, size: int, window: int | None) -> dict[str, Any]:
    """The arguments that say causal, window, scale and grouped queries to this torch."""
    known = _parameters()
    options: dict[str, Any] = {}
    if "window_size" in known:
        options["window_size"] = (-1, 0) if window is None else (window - 1, 0)
    elif window is None:
        options["is_causal"] = True
    else:
        raise ValueError(f"varlen attention of torch {torch.__version__} has no sliding window")
    if "scale" in known:
        options["scale"] = scaling
    elif scaling is not None and not math.isclose(scaling, size**-0.5):
        raise ValueError(f"varlen attention of torch {torch.__version__} takes no scale {scaling}")
    if "enable_gqa" in known:
        options["enable_gqa"] = True
    return options


@functools.cache
def _varlen() -> Any:
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn


@functools.cache
def _parameters() -> Mapping[str, Any]:
    return inspect.signature(_varlen()).parameters
