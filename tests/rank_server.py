"""What the ranks of tests are forked from: imported once, by what the launcher's server does it.

That also leaves all that was imported out of the ranks' garbage collections: each of them would
go through the libraries' objects, and copy their pages, once for its warm-up.
"""

from __future__ import annotations

from autotune.worker import preload

BACKENDS = ("ddp", "fsdp2", "deepspeed", "zero3")
MORE = (
    "support_trials",
    "peft",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.runtime.zero.muon.muon_optimizer",
)

preload.preload(preload.modules_for(BACKENDS, MORE)[0])
