"""Measure the device at hand, and write it as a cluster that every verb can use.

`calibrate(...)` measures ops, `measure_collectives(...)` collectives between real processes. torch is imported inside
functions only, so that importing this costs nothing.

`windtunnel.calibrate` is the name of this package and of its one function: the package is callable.
"""

from __future__ import annotations

from windtunnel.lazy import called_as
from windtunnel.real.calibrate.run import Outcome, calibrate

__all__ = ["Outcome", "calibrate"]
called_as(__name__, "run")
