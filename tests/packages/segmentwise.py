"""Torch's own functions, run for each segment of a packed row by itself."""

from __future__ import annotations

import itertools

import torch

CALLS: list[tuple[str, bool]] = []
"""Name of each function that was called, and whether it was given boundaries."""


def delta_rule(query, key, value, *, g, beta, cu_seqlens, **named):
    from transformers.models.qwen3_5 import modeling_qwen3_5 as library

    function = library.torch_chunk_gated_delta_rule
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    CALLS.append(("delta rule", cu_seqlens is not None))
    outputs = [
        function(query[:, s], key[:, s], value[:, s], g=g[:, s], beta=beta[:, s], **named)[0]
        for s in segments(cu_seqlens, query.shape[1])
    ]
    return torch.cat(outputs, dim=1), None


def convolution(hidden, weight, bias, activation, ends, name):
    """Take rows × channels × length."""
    CALLS.append((name, ends is not None))
    width = weight.shape[-1]
    outputs = [
        torch.nn.functional.conv1d(
            hidden[:, :, s], weight[:, None], bias, padding=width - 1, groups=weight.shape[0]
        )[:, :, : s.stop - s.start]
        for s in segments(ends, hidden.shape[-1])
    ]
    output = torch.cat(outputs, dim=-1)
    return output if activation is None else torch.nn.functional.silu(output)


def segments(ends, length):
    """Slices of a row: those between cumulative lengths, empty ones left out, or the whole."""
    if ends is None:
        return [slice(0, length)]
    ends = ends.tolist()
    assert ends[0] == 0
    assert ends[-1] == length
    return [slice(first, last) for first, last in itertools.pairwise(ends) if last > first]
