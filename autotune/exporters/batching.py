"""What of the cut of a batch no target's file can say: the trainer's own code does it."""

from __future__ import annotations

from autotune.contract.plan import Plan


def notes(plan: Plan, file: str) -> tuple[str, ...]:
    """Return what the trainer has to do to cut batches as measured.

    Args:
        plan: The measured plan.
        file: The target's file in words, such as ``this JSON``.
    """
    found = []
    max_tokens = plan.config.get("workload.max_tokens")
    batching = plan.config.get("workload.batching")
    if max_tokens is not None:
        found.append(
            f"the measured cut by max_tokens={max_tokens} cannot be said in {file}: let your "
            "trainer cut micro-steps by tokens"
        )
    if batching == "packed":
        found.append(
            f"batching: packed into rows of {max_tokens} tokens is done by your trainer's "
            "collator, which must pass position ids that restart at each sample, no mask, and the "
            "boundaries as cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k and seq_idx "
            "(transformers' DataCollatorWithFlattening returns them on request)"
        )
    elif batching == "sorted":
        found.append(
            "batching: sorted is done by your trainer's sampler, which takes the longest samples "
            "of each global batch first"
        )
    return tuple(found)


def losses(plan: Plan) -> tuple[str, ...]:
    """Return what of the cut is lost in any file."""
    by_tokens = plan.config.get("workload.max_tokens") is not None
    return ("the cut of the global batch by tokens",) if by_tokens else ()
