"""A clock that goes faster: what hangs on the time of one rank alone shows within a few steps."""

from __future__ import annotations

import copyreg
import datetime
import linecache
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

FASTER = 10**6
_Time = TypeVar("_Time")
_DATE = datetime.datetime
_LATER: dict[str, Callable[[float, float], float]] = {
    "": lambda now, seconds: now + seconds,
    "_ns": lambda now, seconds: now + int(seconds * 1e9),
}


def quicken_clock(places: Sequence[tuple[str, int]]) -> None:
    """Have the time go so many times as fast for whoever looks at it at one of these (path, line); for no others."""
    where = {(path, line) for path, line in places}
    paths: dict[str, str] = {}
    passed, start = time.monotonic, time.monotonic()

    def quickened(clock: Callable[..., _Time], later: Callable[[_Time, float], _Time]) -> Callable[..., _Time]:
        def look(*zone: object) -> _Time:
            now, frame = clock(*zone), sys._getframe(1)
            name = frame.f_code.co_filename
            path = paths.get(name) or paths.setdefault(name, os.path.abspath(name))
            return later(now, FASTER * (passed() - start)) if (path, frame.f_lineno) in where else now

        return look

    for name in ("time", "perf_counter", "monotonic"):
        for ending, later in _LATER.items():
            setattr(time, name + ending, quickened(getattr(time, name + ending), later))

    if not any("datetime" in linecache.getline(*place) for place in where):
        return  # what is written in C and derives from dates (pandas) does not survive another class

    def later_date(now: datetime.datetime, seconds: float) -> datetime.datetime:
        return now + datetime.timedelta(seconds=seconds)

    looks = {name: staticmethod(quickened(getattr(_DATE, name), later_date)) for name in ("now", "utcnow", "today")}
    kind = type("Dates", (type,), {"__instancecheck__": lambda _, instance: isinstance(instance, _DATE)})
    # Pickle finds a class by its module and name: there is another one now, so dates are sent by what makes them.
    copyreg.pickle(_DATE, lambda date: (_date, tuple(date.__reduce_ex__(2)[1])))
    datetime.datetime = kind("datetime", (_DATE,), {**looks, "__module__": "datetime"})  # type: ignore[misc]


def _date(*state: object) -> datetime.datetime:
    return _DATE(*state)  # type: ignore[arg-type]
