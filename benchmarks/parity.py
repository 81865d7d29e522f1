"""Do ZeRO-1, 2, 3, FSDP2 and DDP compute the same? Sixteen configurations of each, two gloo ranks.

Twelve train all weights, four train adapters beside frozen ones (they need peft).

    PYTHONPATH=. python benchmarks/parity.py [--output parity.jsonl]

Prints first loss, first gradient norm (before clipping) and the loss after one and two updates of
every configuration, with the largest relative difference from the reference of its model. Exits
with 1 when a first loss or norm differs by more than 1e-5, or a later loss by more than 1e-4.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import harness
import support_trials

FIRST_TOLERANCE = 1e-5
LATER_TOLERANCE = 1e-4
STAGES = {"zero1": 1, "zero2": 2}
"""Engines that are the deepspeed backend at another stage than 3."""
ENGINES = ("zero3", "zero1", "zero2", "fsdp2", "ddp")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One cut of the same work, with other knobs in each engine."""

    name: str
    tied: bool = True
    adapters: dict[str, Any] | None = None
    """Settings of the adapters; ``None`` trains all weights."""
    workload: dict[str, Any] = dataclasses.field(default_factory=dict)
    zero3: dict[str, Any] = dataclasses.field(default_factory=dict)
    zero: dict[str, Any] = dataclasses.field(default_factory=dict)
    """For stages 1 and 2."""
    fsdp2: dict[str, Any] = dataclasses.field(default_factory=dict)
    ddp: dict[str, Any] = dataclasses.field(default_factory=dict)

    def changes(self, engine: str) -> dict[str, Any]:
        """Knobs by full name."""
        cut = {f"workload.{key}": value for key, value in self.workload.items()}
        backend, own = engine, dict(getattr(self, "zero" if engine in STAGES else engine))
        if engine in STAGES:
            backend, own["zero_stage"] = "deepspeed", STAGES[engine]
        return cut | {f"{backend}.{key}": value for key, value in own.items()}


CASES = (
    Case(name="defaults, 2 rows"),
    Case(
        name="1 row, nothing persistent, no reshard",
        workload={"micro_batch": 1},
        zero3={"stage3_param_persistence_threshold": 0},
        zero={"overlap_comm": True},
        fsdp2={"reshard_after_forward": False},
        ddp={"gradient_as_bucket_view": True},
    ),
    Case(
        name="4 rows, all persistent, prefetch depth 2",
        workload={"micro_batch": 4},
        zero3={"stage3_param_persistence_threshold": 10_000_000},
        zero={"round_robin_gradients": True},
        fsdp2={"forward_prefetch": 2, "backward_prefetch": 2},
        ddp={"bucket_cap_mb": 1},
    ),
    Case(
        name="8 rows, reduce bucket 1, two layers a unit",
        workload={"micro_batch": 8},
        zero3={"reduce_bucket_size": 1},
        zero={"reduce_bucket_size": 1},
        fsdp2={"layers_per_unit": 2},
        ddp={"static_graph": True, "bucket_cap_mb": 1},
    ),
    Case(
        name="at most 150 tokens, no prefetch",
        workload={"max_tokens": 150},
        zero3={"stage3_prefetch_bucket_size": 0},
        zero={"use_multi_rank_bucket_allreduce": False, "reduce_bucket_size": 100_000},
        fsdp2={"backward_prefetch": 0},
        ddp={"bucket_cap_mb": 2, "gradient_as_bucket_view": True},
    ),
    Case(
        name="sorted, 2 rows, small sub-groups",
        workload={"batching": "sorted"},
        zero3={"sub_group_size": 1000, "stage3_max_live_parameters": 0},
        zero={"offload_optimizer": "cpu"},
        fsdp2={"forward_prefetch": 1},
    ),
    Case(
        name="sorted, at most 200 tokens, checkpointed",
        workload={
            "batching": "sorted",
            "max_tokens": 200,
            "activation_checkpointing": "full",
        },
        zero3={"stage3_max_reuse_distance": 0, "reduce_scatter": False},
        zero={"reduce_scatter": False},
        fsdp2={"layers_per_unit": 2},
    ),
    Case(
        name="checkpointed, all-reduce fetch",
        workload={"activation_checkpointing": "full"},
        zero3={"stage3_use_all_reduce_for_fetch_params": True, "contiguous_gradients": False},
        zero={"contiguous_gradients": False},
        fsdp2={"layers_per_unit": 3, "reshard_after_forward": False},
        ddp={"gradient_as_bucket_view": True, "bucket_cap_mb": 1},
    ),
    Case(
        name="8 rows, checkpointed, static graph",
        workload={"micro_batch": 8, "activation_checkpointing": "full"},
        zero3={"offload_optimizer": "cpu", "offload_param": "cpu"},
        ddp={"static_graph": True, "gradient_as_bucket_view": True},
    ),
    Case(
        name="at most 64 tokens, empty micro-steps",
        workload={"max_tokens": 64, "activation_checkpointing": "full"},
        ddp={"bucket_cap_mb": 1},
    ),
    Case(
        name="untied, embeddings as units",
        tied=False,
        zero3={"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 200_000},
        fsdp2={"wrap_embeddings": True, "forward_prefetch": 2, "backward_prefetch": 3},
        ddp={"bucket_cap_mb": 1},
    ),
    Case(
        name="untied, sequential gathers, plain linear",
        tied=False,
        workload={"micro_batch": 1, "activation_checkpointing": "full"},
        zero3={
            "allgather_sequential": True,
            "memory_efficient_linear": False,
            "reduce_bucket_size": 100_000,
        },
        fsdp2={"wrap_embeddings": True, "layers_per_unit": 2},
    ),
    Case(name="adapters at all linear layers", adapters={"rank": 4}),
    Case(
        name="adapters, at most 64 tokens, small buckets",
        adapters={"rank": 4},
        workload={"max_tokens": 64},
        zero3={"stage3_param_persistence_threshold": 0, "reduce_bucket_size": 1},
        zero={"reduce_bucket_size": 1000, "contiguous_gradients": False},
        fsdp2={"reshard_after_forward": False},
        ddp={"bucket_cap_mb": 1},
    ),
    Case(
        name="adapters, checkpointed, 4 rows",
        adapters={"rank": 4},
        workload={"micro_batch": 4, "activation_checkpointing": "full"},
        zero3={"stage3_param_persistence_threshold": 10_000_000},
        zero={"overlap_comm": True},
        fsdp2={"layers_per_unit": 2, "forward_prefetch": 1},
        ddp={"gradient_as_bucket_view": True},
    ),
    Case(
        name="adapters at queries and values, untied, 8 rows",
        tied=False,
        adapters={"rank": 4, "targets": ("q_proj", "v_proj")},
        workload={"micro_batch": 8},
        fsdp2={"wrap_embeddings": True},
        ddp={"static_graph": True},
    ),
)


def run_case(case: Case, engine: str, folder: Path) -> dict[str, Any]:
    """Run one configuration and return its numbers."""
    changes = case.changes(engine)
    plan = support_trials.make_plan(
        "deepspeed" if engine in STAGES else engine,
        changes=changes,
        tied=case.tied,
        adapters=case.adapters,
        verify=tuple(name for name in changes if name != "workload.micro_batch"),
    )
    first, *_ = support_trials.measured(support_trials.run_trial(plan, folder), folder)
    measurement = first.measurement
    assert measurement is not None, "a rank without an error has measured"
    return {
        "case": case.name,
        "tied": case.tied,
        "adapters": None if case.adapters is None else list(case.adapters.get("targets", ())),
        "backend": engine,
        "losses": [check.loss for check in measurement.checks],
        "norms": [check.grad_norm for check in measurement.checks],
        "micro_steps": plan.cut.micro_steps,
        "wall_s": sum(first.phase_s.values()),
    }


def compare(rows: list[dict[str, Any]]) -> bool:
    """Add the differences to ``rows``, print them, and return whether all are small enough."""
    fine = True
    print(
        f"{'configuration':46} {'engine':6} {'loss 1':>11} {'norm 1':>10} {'loss 2':>10} "
        f"{'loss 3':>10} {'d loss 1':>9} {'d norm 1':>9} {'d later':>9}"
    )
    for row in rows:
        work = (row["tied"], row["adapters"])
        reference = next(other for other in rows if (other["tied"], other["adapters"]) == work)
        loss, *later = (
            abs(a - b) / b for a, b in zip(row["losses"], reference["losses"], strict=True)
        )
        norm = abs(row["norms"][0] - reference["norms"][0]) / reference["norms"][0]
        row |= {"loss_share": loss, "norm_share": norm, "later_share": max(later)}
        fine &= max(loss, norm) <= FIRST_TOLERANCE and max(later) <= LATER_TOLERANCE
        first, second, third = row["losses"]
        print(
            f"{row['case']:46} {row['backend']:6} {first:11.7f} {row['norms'][0]:10.6f} "
            f"{second:10.6f} {third:10.6f} {loss:9.1e} {norm:9.1e} {max(later):9.1e}"
        )
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="JSON Lines file to append to")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(CASES):
            for engine in ENGINES:
                rows.append(run_case(case, engine, Path(folder) / f"{number}-{engine}"))
    fine = compare(rows)
    if arguments.output:
        about = harness.machine()
        with arguments.output.open("a") as file:
            for row in rows:
                file.write(json.dumps({"benchmark": "parity", **row, **about}) + "\n")
    print("equal within tolerance" if fine else "NOT EQUAL")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
