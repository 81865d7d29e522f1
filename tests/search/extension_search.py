"""A real search on two CPU processes whose engine compiles an extension; for tests that kill it.

``python extension_search.py FOLDER STUDY [TRIALS]``: one trial, unless said; what the search says
goes to standard output, the end's name last.
"""

from __future__ import annotations

import sys
from pathlib import Path

import planted_extension

from autotune.errors import AutotuneError
from autotune.launchers.local import LocalLauncher
from autotune.search import available
from autotune.search.interrupts import Interrupts
from autotune.search.request import SearchRequest
from autotune.search.session import run_search


def main() -> None:
    folder, study, *trials = sys.argv[1:]
    planted_extension.plant_knob()
    available._has_compiler = lambda: True
    request = SearchRequest(
        space=str(Path(folder) / "space.yaml"),
        trials=int(trials[0]) if trials else 1,
        study=study,
        runs=Path(folder) / "runs",
        anchors=False,
        make_launcher=lambda study, topology, space: LocalLauncher(
            study, topology.processes, "cpu", backends=("zero3",), modules=("planted_extension",)
        ),
        command=("autotune", "search"),
    )

    def say(event: object) -> None:
        text = getattr(event, "text", None)
        if text is not None:
            print(text, flush=True)

    try:
        with Interrupts() as interrupts:
            run_search(request, say, interrupts=interrupts)
    except AutotuneError as error:
        print(error, flush=True)
        print(type(error).__name__, flush=True)
    else:
        print("done", flush=True)


if __name__ == "__main__":
    main()
