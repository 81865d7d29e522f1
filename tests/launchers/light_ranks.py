"""The scripted ranks, with a server that finds none of the libraries and so starts at once."""

from __future__ import annotations

import runpy
import sys

sys.modules.update(dict.fromkeys(("torch", "transformers", "deepspeed", "functorch")))

from scripted_ranks import run_rank as run_rank  # noqa: E402

if __name__ == "__main__":
    runpy.run_module("scripted_ranks", run_name="__main__")
