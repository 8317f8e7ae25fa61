"""Groups as objects: any number side by side, none of them torch's default group.

A gloo group is built in a thread with a store client of its own, because building waits for every member, and a member
may die meanwhile: then the thread is left to its timeout and the next view is built. A TCPStore client is one
connection under one lock, so a thread that waits on it would hold up everybody who shares it.

A group whose member is lost is aborted by everybody who hears of it, from a failed collective or from the launcher. A
closed connection alone does not tell all: in a ring each member hears its neighbours only, and a thread that builds a
group still keeps its connections open.

NCCL would take the same places (`ProcessGroupNCCL`, `abort()`); that path is not written, since no GPU has run it.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from windtunnel.real.survive.live.place import Place

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

BUILD_TIMEOUT_S = 60.0
ABORT_TAG = 2  # a message that nobody sends


def store_of(place: Place) -> dist.Store:
    """A client of the launcher's store, for one thread."""
    from torch.distributed import TCPStore

    return TCPStore(place.host, place.port, is_master=False, timeout=timedelta(seconds=BUILD_TIMEOUT_S))


class Spare:
    """A client of the launcher's store, made before it is needed.

    Torch writes the name of each peer into its log, so a new connection may wait seconds for a name server.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._begin()

    def _begin(self) -> None:
        self._made: list[dist.Store] = []
        self._thread = threading.Thread(target=self._make, daemon=True, name="spare")
        self._thread.start()

    def _make(self) -> None:
        with suppress(RuntimeError):  # the launcher has gone: whoever needs the client meets that
            self._made.append(store_of(self._place))

    def take(self) -> dist.Store:
        """The client; another is made."""
        self._thread.join()
        store = self._made.pop() if self._made else store_of(self._place)
        self._begin()
        return store

    def close(self) -> None:
        """No thread of it is left."""
        self._thread.join()


class PendingGroup:
    """A group that is being built; `group` is set once it stands. `store`: a client for it alone; else it makes one."""

    def __init__(self, place: Place, generation: int, members: Sequence[str], store: dist.Store | None = None) -> None:
        self.generation, self.members = generation, tuple(members)
        self.rank = self.members.index(place.name)
        self.group: dist.ProcessGroup | None = None
        self.over = threading.Event()
        self.store = store
        self._place = place
        threading.Thread(target=self._build, daemon=True, name=f"group {generation}").start()

    def _build(self) -> None:
        from torch.distributed import PrefixStore, ProcessGroupGloo

        try:
            if self.store is None:
                self.store = store_of(self._place)
            prefix = PrefixStore(f"group/{self.generation}", self.store)
            timeout = timedelta(seconds=self._place.timeout_s)
            self.group = ProcessGroupGloo(prefix, self.rank, len(self.members), timeout)
        except RuntimeError:  # a member died before it came: the launcher publishes another view
            self.group = None
        self.over.set()

    def wait(self, given_up: Callable[[], bool]) -> object:
        """The group; None where it could not be built or `given_up()` says that nobody needs it any more."""
        while not self.over.wait(0.01):
            if given_up():
                return None
        return self.group


def abort(group: torch._C._distributed_c10d.Backend) -> None:
    """Close all connections of a group. Whatever waits on it fails at once, in any thread here and at its neighbours.

    Gloo closes them when a receive does not end within its limit. It has no other way: in torch 2.13 its `abort` does
    nothing, and giving the group up waits for its collectives. A connection that is closed already fails without a
    wait and closes no other, so every peer is tried.
    """
    import torch

    for peer in range(group.size()):
        if peer != group.rank():
            with suppress(RuntimeError):
                group.recv([torch.zeros(1)], peer, ABORT_TAG).wait(timedelta(milliseconds=1))


def reduced(group: torch._C._distributed_c10d.Backend, pieces: Sequence[object]) -> bool:
    """All-reduce the pieces in place; False where a member is gone."""
    try:
        works = [group.allreduce([piece]) for piece in pieces]
        for work in works:
            work.wait()
    except RuntimeError:
        return False
    return True


def gathered(group: torch._C._distributed_c10d.Backend, number: int, size: int) -> list[int] | None:
    """One number from every member, by rank; None where a member is gone."""
    import torch

    everyone = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    try:
        group.allgather([everyone], [torch.tensor([number])]).wait()
    except RuntimeError:
        return None
    return [int(tensor) for tensor in everyone]


def packed(value: object) -> bytes:
    """`value` as `torch.save` writes it."""
    import torch

    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def sending(
    group: torch._C._distributed_c10d.Backend, data: bytes, rank: int, tag: int = 0
) -> list[torch.distributed.Work]:
    """Bytes on their way to a rank, to be waited for; it has to ask for them by `received`."""
    import torch

    works = [group.send([torch.tensor([len(data)])], rank, tag)]
    if data:
        works.append(group.send([torch.frombuffer(bytearray(data), dtype=torch.uint8)], rank, tag + 1))
    return works


def received(group: torch._C._distributed_c10d.Backend, rank: int, tag: int = 0) -> bytes:
    """What a rank sends by `sending`. Raises RuntimeError where it is gone."""
    import torch

    length = torch.zeros(1, dtype=torch.int64)
    group.recv([length], rank, tag).wait()
    data = torch.empty(int(length), dtype=torch.uint8)
    if data.numel():
        group.recv([data], rank, tag + 1).wait()
    return bytes(data.numpy().tobytes())


def handed_over(
    group: torch._C._distributed_c10d.Backend, rank: int, source: int, lacking: Sequence[int], state: bytes
) -> bytes | None:
    """The state of rank `source`, sent to each rank that lacks it. None where a member is gone; `state` elsewhere."""
    import torch

    try:
        for target in lacking if rank == source else ():
            for work in sending(group, state, target):
                work.wait()
        if rank in lacking:
            state = received(group, source)
        group.allreduce([torch.zeros(1)]).wait()  # everybody has it
    except RuntimeError:
        return None
    return state
