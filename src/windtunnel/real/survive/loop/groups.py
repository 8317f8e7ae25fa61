"""Process groups whose connections are replaced while everything that holds the group keeps it.

DistributedDataParallel's reducer, a DeviceMesh, FSDP2 and DTensor keep the group that they were given. So under the
launcher `torch.distributed` gets groups of the class `Replaceable`, which pass every call on to a gloo group inside.
After a death the inner one is closed and another is built under the same name and the number of the new view; ranks
stay as they were. (From PyTorch 2.14 on groups offer `reconfigure` for that; 2.13 has nothing of the kind.)

A replacement runs the script from its first line, while the others are in the midst of it. So its groups are *alone*
at first: a collective answers what the tape has, which the rank of old recorded until it had done two steps, so that a
seed which was broadcast is the same seed; and where the tape has nothing (large tensors are not kept: they are
parameters, which come with the state) as if all peers held what this rank holds.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist

from windtunnel.real.survive.live.group import abort
from windtunnel.real.survive.loop.between import Between, MessageWork, Tape, tensors

LOST = re.compile(r"\bgloo\b|connection (closed|reset)|broken pipe|application timeout|pair closure", re.IGNORECASE)
Answer = Callable[..., None]
Connection = tuple[dist.ProcessGroup, object]  # a group of torch's own, and gloo within it


class FinishedWork(dist._Work):  # type: ignore[misc]
    """A communication that is over."""

    def __init__(self, result: object) -> None:
        super().__init__()
        self._future: torch.futures.Future[object] = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Nothing is left to wait for."""
        return True

    def is_completed(self) -> bool:
        """Always."""
        return True

    def get_future(self) -> torch.futures.Future[object]:
        """What callbacks are hung on."""
        return self._future


@dataclass
class Groups:
    """All groups of this process in the order in which the script made them, and how they behave now."""

    groups: list[Replaceable] = field(default_factory=list)
    alone: bool = False  # a replacement that has not joined yet
    tape: Tape | None = None
    recording: bool = False
    between: Between | None = None  # the script is between two calls of its step

    def close(self) -> None:
        """Let nobody wait in any of them: neither here nor at a peer."""
        for group in self.groups:
            inner = group.gloo
            if inner is not None:
                abort(inner)

    def drop(self) -> None:
        """Forget the closed connections."""
        for group in self.groups:
            group.inner = group.gloo = None

    def connections(self, store: dist.Store, generation: int, given_up: Callable[[], bool]) -> list[Connection] | None:
        """New connections for all of them, in the order in which all ranks made them; None where a member is gone.

        `store`: a client for them alone. A group's name is that of no other group of the job.
        """
        connections: list[Connection] = []
        over = threading.Event()

        def build() -> None:
            try:
                for group in list(self.groups):
                    connections.append(
                        group.connected(dist.PrefixStore(f"again {generation}/{group.group_name}", store))
                    )
            except RuntimeError:
                pass  # fewer connections than groups
            over.set()

        threading.Thread(target=build, daemon=True, name=f"groups {generation}").start()
        while not over.wait(0.01):
            if given_up():
                return None
        return connections if len(connections) == len(self.groups) else None

    def adopt(self, connections: Sequence[Connection]) -> None:
        """Go on with these."""
        self.alone = self.recording = False
        for group, (inner, gloo) in zip(self.groups, connections, strict=True):
            group.inner, group.gloo = inner, gloo


GROUPS = Groups()


class Replaceable(dist.ProcessGroup):  # type: ignore[misc]
    """A process group over gloo whose connections can be replaced."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self.store, self.timeout = store, timeout
        self.inner: dist.ProcessGroup | None = None
        self.gloo: object = None
        self._name = self._desc = ""
        self.options = SimpleNamespace()  # torch writes names there
        if not GROUPS.alone:
            self.inner, self.gloo = self.connected(self.store.clone())
        GROUPS.groups.append(self)

    def connected(self, store: dist.Store) -> Connection:
        """Connections to all members, who meet in this store. Raises RuntimeError where one is gone."""
        gloo = dist.ProcessGroupGloo(store, self.rank(), self.size(), self.timeout)
        inner = dist.ProcessGroup(store, self.rank(), self.size())
        kind = dist.ProcessGroup.BackendType.GLOO
        inner._set_default_backend(kind)
        inner._register_backend(torch.device("cpu"), kind, gloo)
        return inner, gloo

    def getBackendName(self) -> str:  # noqa: N802
        """Not "gloo": C++ casts a group of that name to gloo's own class."""
        return "replaceable"

    # Torch keeps a group's name in its backends, and this one has none.

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """As torch registers it."""
        return self._name

    group_name = property(getGroupName)

    def _set_group_desc(self, text: str) -> None:
        self._desc = text

    def getGroupDesc(self) -> str:  # noqa: N802
        """What torch calls it."""
        return self._desc

    group_desc = property(getGroupDesc)

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def passed_on(self, name: str, words: Sequence[object]) -> dist.Work:
        """A call to gloo. Raises RuntimeError where a member is gone."""
        if self.inner is None:
            raise RuntimeError("gloo: the connections of this group are closed")
        return getattr(self.inner, name)(*words)

    def call(self, name: str, words: Sequence[object], written: int | None, alone: Answer | None) -> dist.Work:
        """Pass a call on; or answer it, alone, by the tape or by `alone`."""
        answers = [] if written is None else list(tensors(words[written]))
        tape = GROUPS.tape
        if GROUPS.alone:
            is_answered = bool(answers) and tape is not None and tape.fill(tape.next_key(), answers)
            if answers and not is_answered and GROUPS.between is not None:
                GROUPS.between.give_up()
            if not is_answered and alone is not None:
                with torch.no_grad():
                    alone(self.rank(), *words)
            return FinishedWork(answers)
        if GROUPS.between is not None and tape is not None:
            return GROUPS.between.call(self, name, words, written, alone is None, tape)
        work = self.passed_on(name, words)
        if GROUPS.recording and answers and tape is not None:
            key = tape.next_key()

            def finish() -> None:
                work.wait()
                tape.keep(key, answers)

            if name.startswith("recv"):  # its peer may wait for what this rank sends next
                return MessageWork(finish, lambda: bool(work.is_completed()))
            finish()
        return work


def _copies(rank: int, parts: Sequence[torch.Tensor], mine: torch.Tensor, *_: object) -> None:
    for part in parts:
        part.copy_(mine)


def _repeated(rank: int, output: torch.Tensor, mine: torch.Tensor, *_: object) -> None:
    flat = output.view(-1)
    for at in range(0, flat.numel(), max(1, mine.numel())):
        flat[at : at + mine.numel()].copy_(mine.reshape(-1))


def _own_part(rank: int, output: torch.Tensor, parts: Sequence[torch.Tensor], *_: object) -> None:
    output.copy_(parts[rank])


def _own_chunk(rank: int, output: torch.Tensor, whole: torch.Tensor, *_: object) -> None:
    output.view(-1).copy_(whole.reshape(-1)[rank * output.numel() : (rank + 1) * output.numel()])


def _exchanged(rank: int, output: torch.Tensor, mine: torch.Tensor, *_: object) -> None:
    same = min(output.numel(), mine.numel())
    output.zero_()
    output.view(-1)[:same].copy_(mine.reshape(-1)[:same])


def _nothing_came(rank: int, tensors: Sequence[torch.Tensor], *_: object) -> None:
    for tensor in tensors:
        tensor.zero_()


def _each(answer: Answer) -> Answer:
    def every(rank: int, outputs: Sequence[object], inputs: Sequence[object], *_: object) -> None:
        for output, mine in zip(outputs, inputs, strict=False):  # a rank that is not the root gives or gets nothing
            answer(rank, output, mine)

    return every


# Name of the call -> (which of its arguments are written, the answer of a rank alone). Calls without outputs (send,
# barrier) are over at once; without an answer what is written stays as this rank has it.
_CALLS: dict[str, tuple[int | None, Answer | None]] = {
    "allreduce": (0, None),
    "allreduce_coalesced": (0, None),
    "broadcast": (0, None),
    "reduce": (0, None),
    "allgather": (0, _each(_copies)),
    "_allgather_base": (0, _repeated),
    "all_gather_single": (0, _repeated),
    "allgather_into_tensor_coalesced": (0, _each(_repeated)),
    "gather": (0, _each(_copies)),
    "scatter": (0, _each(_own_part)),
    "reduce_scatter": (0, _each(_own_part)),
    "_reduce_scatter_base": (0, _own_chunk),
    "reduce_scatter_single": (0, _own_chunk),
    "reduce_scatter_tensor_coalesced": (0, _each(_own_chunk)),
    "alltoall": (0, _each(_exchanged)),
    "alltoall_base": (0, _exchanged),
    "all_to_all_single": (0, _exchanged),
    "recv": (0, _nothing_came),
    "recv_anysource": (0, _nothing_came),
    "send": (None, None),
    "barrier": (None, None),
}


def _passing_on(name: str, written: int | None, alone: Answer | None) -> Callable[..., dist.Work]:
    def method(self: Replaceable, *arguments: object, **keywords: object) -> dist.Work:
        return self.call(name, (*arguments, *keywords.values()), written, alone)

    method.__name__ = name
    return method


for _name, (_written, _alone) in _CALLS.items():
    setattr(Replaceable, _name, _passing_on(_name, _written, _alone))


class _GlooClass(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Replaceable | dist.ProcessGroupGloo)

    def __call__(cls, store: dist.Store, rank: int, size: int, timeout: timedelta) -> Replaceable:
        return Replaceable(store, rank, size, timeout)


class _Gloo(metaclass=_GlooClass):
    """What torch takes for gloo's class, and gets replaceable groups from."""


def make_groups_replaceable() -> None:
    """From now on groups over gloo are replaceable: the default one, those of `new_group` and of every DeviceMesh.

    What they say to each other in the launcher's store is apart from what they said when the job was begun before.
    """
    import torch.distributed.distributed_c10d as c10d

    rendezvous: Any = import_module("torch.distributed.rendezvous")  # the package has a function of that name
    cast(Any, c10d).ProcessGroupGloo = _Gloo
    create = rendezvous._create_c10d_store

    def of_this_attempt(*arguments: object, **keywords: object) -> dist.Store:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return dist.PrefixStore(f"attempt {attempt}", create(*arguments, **keywords))

    rendezvous._create_c10d_store = of_this_attempt


def is_lost_connection(error: BaseException | None) -> bool:
    """Whether a peer is gone, rather than the script wrong."""
    while error is not None:
        if isinstance(error, RuntimeError | OSError) and LOST.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False
