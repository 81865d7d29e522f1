"""What the site itself has set in the environment is what the user runs today.

A variable that a space file names and gives no value is in the baseline as it is set where the
search is started; one that no file names is inherited as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from autotune.errors import InputError
from autotune.knobs import environment
from autotune.space.search_space import SearchSpace


def with_site_values(
    space: SearchSpace, present: Mapping[str, str]
) -> tuple[SearchSpace, tuple[str, ...]]:
    """Return ``space`` with the site's values in its baseline, and what to say of them.

    Args:
        space: As the file states it.
        present: The environment in which the search is started.

    Raises:
        InputError: A variable that is tuned is set to what its knob does not know.
    """
    found: dict[str, Any] = {}
    notes: list[str] = []
    knobs = dict(space.knobs)
    for full, knob in space.knobs.items():
        if knob.owner != environment.OWNER:
            continue
        names = environment.ALLOCATOR_NAMES if knob.name == environment.ALLOCATOR else (knob.name,)
        text = next((present[name] for name in names if present.get(name)), None)
        if text is None:
            continue
        # Without a trace in the key, "not set" would be taken for a launch that inherited the
        # site's value, because its file did not name the variable.
        knobs[full] = dataclasses.replace(knob, later=False)
        if full in space.fixed or full in space.baseline:
            continue
        try:
            found[full] = environment.typed(text, knob)
        except ValueError:
            raise InputError(
                f"{full} is tuned, and the environment has {knob.name}={text!r}, which is no value "
                "of it",
                hint=f"unset {knob.name}, or state the baseline's value under baseline",
            ) from None
        notes.append(f"the baseline has {full} = {text}, as it is set here")
    return dataclasses.replace(space, knobs=knobs).with_baseline(found), tuple(notes)
