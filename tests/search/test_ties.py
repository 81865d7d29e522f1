"""Which of several configurations that launches cannot tell apart is taken."""

from __future__ import annotations

import pytest
from scripted import GIB, THREE_BUCKETS, Act, Bench

from autotune.contract.plan import Plan
from autotune.search import ties

MEASURED = Act(peak_bytes=2 * GIB, worst_bytes=4 * GIB)


@pytest.mark.parametrize(
    ("other", "lighter"),
    [
        (Act(peak_bytes=3 * GIB, worst_bytes=int(3.5 * GIB)), "other"),
        # Its worst case was not run, so only the timed peaks say which needs less.
        (Act(peak_bytes=3 * GIB, worst_bytes=5 * GIB, worst_is_bound=True), "measured"),
        (Act(peak_bytes=GIB, worst_bytes=5 * GIB, worst_is_bound=True), "other"),
    ],
)
def test_less_memory_is_of_peaks_that_were_measured_alike(
    bench: Bench, other: Act, lighter: str
) -> None:
    def script(plan: Plan) -> Act:
        return other if plan.config["ddp.bucket_cap_mb"] == 4 else MEASURED

    contents = bench.search(script, space=THREE_BUCKETS, trials=3, anchors=False).contents
    by_size = {one.header.config["ddp.bucket_cap_mb"]: one for one in contents.trials}
    names = {2: "measured", 4: "other"}
    won = ties.winner([by_size[2], by_size[4]], by_size[1])
    assert names[won.header.config["ddp.bucket_cap_mb"]] == lighter
    assert ties.needs_less_memory(by_size[4], by_size[2]) is (lighter == "other")
    assert ties.needs_less_memory(by_size[2], by_size[4]) is (lighter == "measured")
