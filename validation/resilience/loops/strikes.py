"""Ranks that end themselves in the midst of a call: STRIKE="6:1:3 9:0:4" ends rank 1, once, before the third
communication of call 6 (those by which ranks agree on the call are the last ones), and rank 0 before the fourth of call
9.
"""

import os
import signal

from common import asked

from windtunnel.real.survive.loop.groups import Replaceable
from windtunnel.real.survive.loop.standby import _Standby

STRIKES = os.environ.get("STRIKE", "").split()


def strike(*where) -> None:
    """End this process, once, where it is told to."""
    name = ":".join(map(str, where))
    if name in STRIKES and not (asked.out / name).exists():
        (asked.out / name).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def counted(rank, step):
    """The step, with its communications numbered from 1 in each attempt; `begun[0]` is what `standby` made of it."""
    begun, number = [], [0]

    def from_here(*arguments, **named):
        number[0] = 0
        return step(*arguments, **named)

    def counting(method):
        def communicate(*arguments):
            number[0] += 1
            if begun and begun[0].committed >= 0:  # a replacement's first calls are its own affair
                strike(begun[0].calls, rank, number[0])
            return method(*arguments)

        return communicate

    Replaceable.passed_on, _Standby._gathered = counting(Replaceable.passed_on), counting(_Standby._gathered)
    return from_here, begun
