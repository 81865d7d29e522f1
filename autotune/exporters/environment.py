"""Variables that a measured configuration sets: no target's file holds them, so a script does."""

from __future__ import annotations

import shlex
from pathlib import Path

from autotune.contract.plan import Plan
from autotune.knobs import environment


def companion(plan: Plan, main: str, about: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the script to source before a launch, and what to do about it.

    Args:
        plan: The measured plan.
        main: Name of the main file.
        about: Where it comes from.
    """
    variables, unset = environment.variables(plan.config)
    if not variables and not unset:
        return {}, ()
    name = f"{Path(main).stem}.env.sh"
    lines = [f"# {' '.join(about.split())}"]
    lines += [f"export {key}={shlex.quote(value)}" for key, value in sorted(variables.items())]
    lines += [f"unset {key}" for key in unset]
    said = [f"{key}={value}" for key, value in sorted(variables.items())]
    said += [f"{key} not set" for key in unset]
    note = (
        f"it was measured with {', '.join(said)}: '. ./{name}' in the shell that starts the "
        "training, or the same lines in your job script"
    )
    return {name: "\n".join(lines) + "\n"}, (note,)
