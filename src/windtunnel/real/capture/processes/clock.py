"""A clock that goes faster: what hangs on the time of one rank alone shows within a few steps."""

from __future__ import annotations

import datetime
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

FASTER = 10**6
_UNITS: dict[str, Callable[[float], object]] = {"": float, "_ns": lambda seconds: int(seconds * 1e9)}


def quicken_clock(places: Sequence[tuple[str, int]]) -> None:
    """Have the time go so many times as fast for whoever looks at it at one of these (path, line); for no others."""
    where = {(path, line) for path, line in places}
    paths: dict[str, str] = {}
    passed, begun = time.monotonic, time.monotonic()

    def quickened(clock: Callable[..., Any], unit: Callable[[float], object]) -> Callable[..., object]:
        def look(*zone: object) -> object:
            now, frame = clock(*zone), sys._getframe(1)
            name = frame.f_code.co_filename
            path = paths.get(name) or paths.setdefault(name, os.path.abspath(name))
            return now + unit(FASTER * (passed() - begun)) if (path, frame.f_lineno) in where else now

        return look

    for name in ("time", "perf_counter", "monotonic"):
        for ending, unit in _UNITS.items():
            setattr(time, name + ending, quickened(getattr(time, name + ending), unit))
    real, dates = datetime.datetime, {"now": datetime.datetime.now, "utcnow": datetime.datetime.utcnow}
    looks = {name: staticmethod(quickened(of, lambda s: datetime.timedelta(seconds=s))) for name, of in dates.items()}
    kind = type("Dates", (type,), {"__instancecheck__": lambda _, one: isinstance(one, real)})
    datetime.datetime = kind("datetime", (real,), looks)  # type: ignore[misc]
