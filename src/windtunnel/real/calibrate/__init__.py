"""Measure the device at hand, and write it as a cluster that every verb can use.

`calibrate(...)` measures ops, `measure_collectives(...)` collectives between real processes. torch is imported inside
functions only, so that importing this costs nothing.
"""

from __future__ import annotations

from windtunnel.real.calibrate.run import Outcome, calibrate

__all__ = ["Outcome", "calibrate"]
