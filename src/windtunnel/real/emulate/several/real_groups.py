"""What real ranks truly send each other: a real process group behind each virtual one that has several of them.

gloo for tensors on the host, NCCL for those on a GPU (**not yet run on a GPU**). The groups are made when the script
makes its own, which all members do in the same order; they find each other through a file of the run's folder. Their
methods are asked directly: the ops of `c10d` are the virtual world's. They are kept until the process ends: gloo waits,
when it is let go of, for what other ranks may never come to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from windtunnel.real.capture.torch_private import distributed as compat
from windtunnel.real.capture.virtual_world.groups import Group
from windtunnel.studies.programs.rank_classes.proxies import Proxies, proxies_among

PATIENCE = timedelta(hours=24)  # a real rank may compute for long; who is gone is found by its parent


class Lent:
    """A work, and the tensors that the library was lent for it.

    gloo's threads hold what they were given for a moment longer than the work takes, and would be the ones to release
    its memory, where no profiler sees it. So they are given views, which are emptied when the work is done.
    """

    def __init__(self, ask: Callable[..., dist.Work], *tensors: torch.Tensor) -> None:
        self._views = [tensor.detach() for tensor in tensors]
        self.work = ask(*self._views)

    def wait(self) -> None:
        """Until it is done."""
        self.work.wait()
        with compat.below_autograd():
            for view in self._views:
                view.set_()
        self._views.clear()


class Among:
    """The real members of one group."""

    def __init__(self, group: Group, proxies: Proxies, backends: dict[str, torch._C._distributed_c10d.Backend]) -> None:
        self.group, self.proxies = group, proxies
        self.me = proxies.real.index(group.position)
        self._backends = backends

    def number_of(self, place: int) -> int | None:
        """Which real member has this place of the group; None: a virtual one."""
        return self.proxies.real.index(place) if place in self.proxies.real else None

    def backend(self, tensors: Sequence[torch.Tensor]) -> torch._C._distributed_c10d.Backend:
        """The backend for these tensors."""
        device = tensors[0].device.type if tensors else "cpu"
        return self._backends.get(device) or self._backends["cpu"]

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Lent:
        """All-reduce in place, over the real members; the work."""
        options = _options("Allreduce", reduceOp=_OPS[op])
        return Lent(lambda lent: self.backend((tensor,)).allreduce([lent], options), tensor)

    def reduce(self, tensor: torch.Tensor, to: int, op: str = "sum") -> Lent:
        """Reduce to one of them; elsewhere the tensor is used up."""
        options = _options("Reduce", reduceOp=_OPS[op], rootRank=to)
        return Lent(lambda lent: self.backend((tensor,)).reduce([lent], options), tensor)

    def broadcast(self, tensor: torch.Tensor, source: int) -> Lent:
        """Broadcast from one of them."""
        options = _options("Broadcast", rootRank=source)
        return Lent(lambda lent: self.backend((tensor,)).broadcast([lent], options), tensor)

    def exchange(
        self, received: torch.Tensor, sent: torch.Tensor, receive_rows: list[int], send_rows: list[int]
    ) -> Lent:
        """Exchange all to all, in rows of two flat tensors."""
        options = _options("AllToAll")
        ask = self.backend((sent,)).alltoall_base
        return Lent(lambda into, out: ask(into, out, receive_rows, send_rows, options), received, sent)

    def gather(self, parts: list[torch.Tensor], own: torch.Tensor, to: int) -> Lent:
        """Gather the parts of all on one of them."""
        options = _options("Gather", rootRank=to)
        ask, mine = self.backend((own,)).gather, self.me == to
        return Lent(lambda tensor, *rest: ask([list(rest)] if mine else [], [tensor], options), own, *parts)

    def scatter(self, own: torch.Tensor, parts: list[torch.Tensor], source: int) -> Lent:
        """Scatter parts from one of them."""
        options = _options("Scatter", rootRank=source)
        ask, mine = self.backend((own,)).scatter, self.me == source
        return Lent(lambda tensor, *rest: ask([tensor], [list(rest)] if mine else [], options), own, *parts)

    def barrier(self) -> dist.Work:
        """Barrier: moves no data."""
        return self._backends["cpu"].barrier(compat.c10d().BarrierOptions())

    def send(self, tensors: Sequence[torch.Tensor], to: int, tag: int) -> Lent:
        """Send to one of them."""
        return Lent(lambda *lent: self.backend(tensors).send(list(lent), to, tag), *tensors)

    def receive(self, tensors: Sequence[torch.Tensor], source: int, tag: int) -> Lent:
        """Receive from one of them; -1: from whoever sends."""
        backend = self.backend(tensors)
        if source < 0:
            return Lent(lambda *lent: backend.recv_anysource(list(lent), tag), *tensors)
        return Lent(lambda *lent: backend.recv(list(lent), source, tag), *tensors)


class RealGroups:
    """The groups of one real rank."""

    def __init__(self, rank: int, real: Sequence[int], folder: Path) -> None:
        self.rank, self.real = rank, tuple(sorted(real))
        self._folder = folder
        self._store: dist.Store | None = None
        self._among: dict[str, Among] = {}

    def join(self, group: Group) -> None:
        """The script made a group: meet the other real members."""
        proxies = proxies_among(group.members, self.real)
        if len(proxies.real) < 2:
            return
        if self._store is None:
            self._store = dist.FileStore(str(self._folder / "meet"), len(self.real))
        number = proxies.real.index(group.position)
        count = len(proxies.real)
        backends = {"cpu": self._gloo(f"{group.key}/cpu", number, count)}
        if torch.cuda.is_available():
            backends["cuda"] = self._nccl(f"{group.key}/cuda", number, count)
        self._among[group.name] = Among(group, proxies, backends)

    def members_of(self, group: Group) -> Among | None:
        """The real members of a group that has several."""
        return self._among.get(group.name)

    def _gloo(self, name: str, number: int, count: int) -> torch._C._distributed_c10d.Backend:
        c10d = compat.c10d()
        options = c10d.ProcessGroupGloo._Options()
        options._devices = [c10d.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = PATIENCE
        return c10d.ProcessGroupGloo(dist.PrefixStore(name, self._store), number, count, options)

    def _nccl(self, name: str, number: int, count: int) -> torch._C._distributed_c10d.Backend:
        """Not yet run on a GPU."""
        c10d = compat.c10d()
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = PATIENCE
        return c10d.ProcessGroupNCCL(dist.PrefixStore(name, self._store), number, count, options)


def _options(kind: str, **entry: object) -> object:
    options = getattr(compat.c10d(), f"{kind}Options")()
    for name, value in entry.items():
        setattr(options, name, value)
    return options


_OPS = {name: getattr(dist.ReduceOp, name.upper()) for name in ("sum", "product", "min", "max", "band", "bor", "bxor")}
