"""A fast configuration that computes something else is never best."""

from __future__ import annotations

import dataclasses
import itertools
import time

import pytest
from scripted import CHECKS, Act, Bench
from test_finalists import ONE_KNOB, jitter, value

from autotune.contract.plan import CheckPoint, Plan
from autotune.exporters import accelerate, choosing
from autotune.exporters.provenance import provenance
from autotune.report import document


def scaled(loss: float) -> tuple[CheckPoint, ...]:
    return tuple(dataclasses.replace(check, loss=(check.loss or 0) * loss) for check in CHECKS)


def test_only_what_computes_the_same_may_be_exported(bench: Bench) -> None:
    """BUG-043: B has no gradient norm, C no loss, D 20 % other losses; all are faster than A."""
    acts = {
        1: Act(s_per_it=1.00),
        2: Act(
            error="the gradient norm of check iteration 1 is not finite (nan)",
            kind="numerics",
            phase="check",
        ),
        4: Act(s_per_it=0.85, checks=scaled(0.0)),
        8: Act(s_per_it=0.90, checks=scaled(1.2)),
    }
    space = ONE_KNOB.replace("8, 16]", "8]")
    result = bench.search(lambda plan: acts[value(plan)], space=space, trials=4, anchors=False)
    report = document.build(result.contents)
    trials = {trial["params"]["bucket_cap_mb"]: trial for trial in report["trials"]}
    assert {cap: trial["kind"] for cap, trial in trials.items()} == {
        1: None, 2: "numerics", 4: "numerics", 8: "numerics"
    }  # fmt: skip
    assert [trials[cap]["invalid_s_per_it"] for cap in (2, 4, 8)] == [
        None, pytest.approx(0.85), pytest.approx(0.90)
    ]  # fmt: skip
    assert all(trials[cap]["s_per_it"] is None for cap in (2, 4, 8))
    assert "0.2 apart, and 1e-05 is allowed" in trials[8]["reason"]
    assert result.verdict.verdict == "keep_baseline"
    assert choosing.choose(result.contents, report, "out.yaml").trial == trials[1]["number"]


def test_the_report_and_the_export_say_how_close_the_numbers_came(bench: Bench) -> None:
    again = itertools.count()

    def script(plan: Plan) -> Act:
        if value(plan) == 4:
            return Act(s_per_it=0.9 * jitter(again), checks=scaled(1 + 4e-6))
        return Act(s_per_it=jitter(again))

    result = bench.search(script, space=ONE_KNOB, trials=5, anchors=False)
    report = document.build(result.contents)
    gaps = report["best"]["numerics"]
    assert report["baseline"]["numerics"] == {}
    assert gaps["first_loss"] == {"apart": pytest.approx(4e-6, rel=1e-3), "allowed": 1e-5}
    assert gaps["loss"] == {"apart": pytest.approx(4e-6, rel=1e-3), "allowed": 1e-4}
    assert gaps["grad_norm"] == {"apart": 0.0, "allowed": 1e-3}
    request = choosing.choose(result.contents, report, "out.yaml")
    about = provenance(
        request, accelerate.export(request), format_name="accelerate", at=time.time()
    )
    assert about["numerics"] == gaps
