"""Fills the parts of the reference that the program knows itself, when the site is built.

``<!-- knobs: OWNER -->`` becomes the table of an owner's knobs, ``<!-- help: COMMAND -->`` what
``autotune COMMAND --help`` prints. A marker that cannot be filled ends the build.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from typing import Any

MARKER = re.compile(r"<!-- (knobs|help): ?([\w-]*) -->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for every page."""
    return MARKER.sub(lambda match: FILL[match[1]](match[2]), markdown)


def knob_table(owner: str) -> str:
    """The knobs of one owner as a Markdown table."""
    rows = [
        "| knob | type | default | legal | numerics | read back | what it does |",
        "|---" * 7 + "|",
    ]
    for knob in importlib.import_module(f"autotune.knobs.{owner}").KNOBS:
        meaning = knob.meaning + (f" Dead when `{knob.dead_when}`." if knob.dead_when else "")
        meaning += f" `auto` is {knob.auto}." if knob.auto else ""
        cells = (
            f"`{knob.name}`",
            knob.type,
            f"`{shown(knob.default)}`" + (f" {knob.unit}" if knob.unit else ""),
            legal(knob),
            knob.numerics,
            knob.read_back,
            f"{meaning} ({knob.source})",
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def legal(knob: Any) -> str:
    """The legal values of a knob in words."""
    parts = [f"`{shown(choice)}`" for choice in knob.choices]
    if knob.low is not None:
        parts.append(f"≥ {shown(knob.low)}")
    if knob.high is not None:
        parts.append(f"≤ {shown(knob.high)}")
    return ", ".join(parts) or ("`true`, `false`" if knob.type == "bool" else "any")


def shown(value: Any) -> str:
    """A value as a space file has it."""
    if value is None or isinstance(value, bool):
        return {None: "unset", True: "true", False: "false"}[value]
    return f"{value:_}" if isinstance(value, int) else str(value)


def help_text(command: str) -> str:
    """What ``autotune [COMMAND] --help`` prints, as a block."""
    words = [command, "--help"] if command else ["--help"]
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *words], capture_output=True, text=True, check=True
    )
    return f"```text\n{done.stdout.rstrip()}\n```"


FILL = {"knobs": knob_table, "help": help_text}
