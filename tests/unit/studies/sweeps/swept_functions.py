"""What the tests of sweeps call in their workers."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def double(a: int, b: dict | None = None) -> dict:
    return {"twice": 2 * a + (b or {}).get("c", 0.0)}


def slow_double(a: int) -> dict:
    time.sleep(0.02)
    return double(a)


def moody(a: int) -> dict:
    if a == -1:
        raise ValueError("below zero")
    if a == -2:
        os._exit(1)
    return double(a)


def slow(a: int) -> dict:
    """Slow unless SWEPT_FAST is set; dies where `a` is below zero; in a worker of Ray it makes the file SWEPT_TELLS."""
    if "SWEPT_TELLS" in os.environ and "ray" in sys.modules:
        Path(os.environ["SWEPT_TELLS"]).touch()
    if a < 0:
        os._exit(1)
    time.sleep(0.0 if "SWEPT_FAST" in os.environ else 0.05)
    return double(a)
