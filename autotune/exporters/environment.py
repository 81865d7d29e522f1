"""Variables that a measured configuration had: no target's file holds them, so a script does.

Those that it set, and of those that it inherited the ones that change a step: what the site has in
its own job script, another place may lack. The settings that are the site's alone stay out.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from autotune.contract.plan import Plan
from autotune.exporters.base import ExportRequest
from autotune.knobs import environment


def companion(
    request: ExportRequest, main: str, about: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the script to source before a launch, and what to do about it.

    Args:
        request: The export.
        main: Name of the main file.
        about: Where it comes from.
    """
    plan = request.plan
    own, unset = environment.variables(plan.config)
    found = request.contents.study.environment.get("variables", {})
    site = _inherited(plan, found, {*own, *unset})
    if not own and not unset and not site:
        return {}, ()
    name = f"{Path(main).stem}.env.sh"
    lines = [f"# {' '.join(about.split())}", *_exports(own), *(f"unset {key}" for key in unset)]
    said = [f"{key}={value}" for key, value in sorted(own.items())]
    said += [f"{key} not set" for key in unset]
    if site:
        lines += ["# As the environment of the search had them:", *_exports(site)]
        said += [f"{key}={value} (as the site had set it)" for key, value in sorted(site.items())]
    note = (
        f"it was measured with {', '.join(said)}: '. ./{name}' in the shell that starts the "
        "training, or the same lines in your job script"
    )
    return {name: "\n".join(lines) + "\n"}, (note,)


def _inherited(plan: Plan, found: Mapping[str, str], decided: set[str]) -> dict[str, str]:
    """What every rank inherited and no knob decided; without a device it changes nothing."""
    if plan.topology.device != "cuda":
        return {}
    kept = {*decided, *environment.FORBIDDEN}
    return {name: value for name, value in found.items() if name not in kept}


def _exports(variables: Mapping[str, str]) -> list[str]:
    return [f"export {key}={shlex.quote(value)}" for key, value in sorted(variables.items())]
