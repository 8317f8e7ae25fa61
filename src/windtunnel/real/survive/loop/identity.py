"""Who a process of the job is: it learns its rank when the script first asks for it.

A standby runs the script until it reads RANK, LOCAL_RANK or WORLD_SIZE, or makes its first process group. There it
waits, with everything imported (also what the ranks have imported since), for a view that it is in. `torchrun` sets the
same variables.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch.distributed as dist

from windtunnel.process import die_with_parent
from windtunnel.real.survive.live.group import store_of
from windtunnel.real.survive.live.place import Place, newest_view, own_place
from windtunnel.real.survive.loop.between import Tape
from windtunnel.real.survive.loop.framework import remember_wrappers
from windtunnel.real.survive.loop.groups import GROUPS, make_groups_replaceable
from windtunnel.real.survive.loop.warm import Follower
from windtunnel.real.survive.watch.log import RankLog

POLL_S = 0.01
ASKED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass
class Identity:
    """This process in the job."""

    place: Place
    store: dist.Store
    log: RankLog
    rank: int
    attempt: int  # how often the whole job was begun anew
    generation: int
    joins: bool  # it takes the place of a rank whose job goes on

    def key(self, *words: object) -> str:
        """A key of the launcher's store that belongs to this attempt."""
        return "/".join(("loop", str(self.attempt), *(str(word) for word in words)))


IDENTITY: list[Identity] = []
ENDS: list[
    Callable[[], None]
] = []  # end the threads that are inside torch: Python would stop them there, and C++ abort


def known_identity() -> Identity:
    """Wait until this process is a rank of the job. A standby that is never needed ends here, with status 0."""
    if IDENTITY:
        return IDENTITY[0]
    place = own_place()
    assert place is not None
    die_with_parent(os.getppid())
    store = store_of(place)
    log = RankLog.create(place.folder / f"{place.name}.log")
    log.start_beat()
    store.set("loop", "1")
    store.set(f"warm/{place.name}", "1")
    follower, for_tape = Follower(store), store_of(place)
    while True:
        view = newest_view(store)
        if view is not None and not view["members"]:
            log.end()
            sys.exit(0)
        if view is not None and place.name in view["members"]:
            break
        if not follower.follow():
            time.sleep(POLL_S)
    rank, attempt = view["members"].index(place.name), view["attempt"]
    identity = Identity(place, store, log, rank, attempt, view["generation"], joins=view["generation"] > view["began"])
    IDENTITY.append(identity)
    log.play(rank)
    GROUPS.alone, GROUPS.recording = identity.joins, not identity.joins
    GROUPS.tape = Tape(for_tape, identity.key("tape", rank))
    size = str(place.size)
    os.environ.update(
        {
            **{"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"},
            **{"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size},
            **{"MASTER_ADDR": place.host, "MASTER_PORT": str(place.port), "TORCHELASTIC_USE_AGENT_STORE": "True"},
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
        }
    )
    return identity


class _IdentityEnvironment(os._Environ):  # type: ignore[type-arg]
    """`os.environ` of a process that does not know its rank yet."""

    def __getitem__(self, name: str) -> str:
        if name in ASKED and not IDENTITY:
            known_identity()
        return cast(str, super().__getitem__(name))


def prepare() -> None:
    """Before the first line of the script: what it asks `os.environ` and torch for comes from the launcher."""
    for name in ASKED:
        os.environ.pop(name, None)
    os.environ.__class__ = _IdentityEnvironment
    make_groups_replaceable()
    remember_wrappers()


def finished() -> None:
    """The script has come to its end, and well."""
    if IDENTITY:
        IDENTITY[0].log.end()
        IDENTITY[0].store.set(f"done/{IDENTITY[0].place.name}", "1")
