"""Lets the process keep the memory of one large message for the next."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
KEPT_BYTES: Final = 8 * 1024 * 1024
"""What the process does not give back to the system at once: the price, at most, in each."""
LARGEST_KEPT_BYTES: Final = 4 * 1024 * 1024


def keep_freed_memory() -> None:
    """Tell glibc not to return freed memory with every large message, to be faulted in again page by page.

    Measured with 1 MiB from kernel to service and back: 1.8 ms instead of 9. Whoever has set ``MALLOC_TRIM_THRESHOLD_``
    or ``MALLOC_MMAP_THRESHOLD_`` knows better, and other C libraries are left alone.
    """
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
    mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
