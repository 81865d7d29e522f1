"""Auto-tuner for distributed training configurations.

Importing the package loads no heavy library; the command line is :mod:`autotune.cli`.
"""

from __future__ import annotations

__version__ = "0.1.0"
