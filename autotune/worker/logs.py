"""Keeps a rank's log from filling the disk.

A limit on file size (``RLIMIT_FSIZE``) would also stop the files that a trial may write, and a
pipe would slow a rank down when the reader is late. So ranks append to a plain file, and the
server cuts one that has grown too long: its first and last part stay. ``O_APPEND`` makes the
rank's next line follow the cut. Lines that a rank writes in the very moment of the cut are lost.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 32 * 1024 * 1024
"""A log longer than this is cut."""
KEPT_BYTES: Final = 1024 * 1024
"""What stays of the beginning, and of the end."""


def trim(path: Path) -> None:
    """Cut the log if it is too long; one that cannot be cut is left as it is."""
    try:
        if path.lstat().st_size <= MAX_BYTES:
            return
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        size, tail = _stable_tail(handle)
        cut = size - KEPT_BYTES - len(tail)
        kept = f"\n[autotune: {cut} bytes of this log were cut]\n".encode("ascii") + tail
        # The end is copied first and the file cut behind it: at no time is it without its end,
        # which says why a command failed.
        os.pwrite(handle, kept, KEPT_BYTES)
        late = os.pread(handle, KEPT_BYTES, size)
        os.pwrite(handle, late, KEPT_BYTES + len(kept))
        os.ftruncate(handle, KEPT_BYTES + len(kept) + len(late))
    except OSError:
        return
    finally:
        os.close(handle)


def _stable_tail(handle: int) -> tuple[int, bytes]:
    """Return size and end of the file, read again if the rank wrote meanwhile (a few times)."""
    size, tail = 0, b""
    for _ in range(5):
        now = os.fstat(handle).st_size
        if now == size:
            break
        size, tail = now, os.pread(handle, KEPT_BYTES, now - KEPT_BYTES)
    return size, tail
