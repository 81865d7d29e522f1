"""Experts under ZeRO-3 on two real ranks, one of which sees one token again and again (BUG-035)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support_trials import make_plan, measured, run_trial

HERE = str(Path(__file__).resolve().parent)


@pytest.mark.parametrize("checkpointing", ["none", "full", "selective"])
def test_a_rank_whose_tokens_reach_few_experts_holds_nobody_up(
    checkpointing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {
        "zero3.stage3_param_persistence_threshold": 0,
        "workload.activation_checkpointing": checkpointing,
    }
    plan = make_plan(
        "zero3", model_name="qwen3_moe-tiny", global_batch=8, max_length=48, changes=changes
    )
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)
    records = run_trial(plan, tmp_path, fault="engine_faults:one_token_on_rank_1")
    for record in measured(records, tmp_path):
        assert record.measurement.notes["z3_leaf_modules"] == ["Qwen3MoeSparseMoeBlock"]
        assert record.measurement.iteration_s
