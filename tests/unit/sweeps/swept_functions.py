"""What the tests of sweeps call in their workers."""

from __future__ import annotations

import os
import time


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
