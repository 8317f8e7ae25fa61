"""A virtual world: this process is one rank of a job of any size, and `torch.distributed` believes it.

    with World(rank=77, world_size=8192) as world:
        runpy.run_path("train.py", run_name="__main__")

Every call on peers is answered here: *what* is asked goes to the listener, which says when it completes; *what data*
comes back is the peer policy's (peers.py), or a mailbox's where other ranks of the same world do run; *how* it comes
back is a `Work` (work.py). Leaving the world puts everything back that it replaced, and ends its thread.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from windtunnel.real.capture.replacements import Replacements
from windtunnel.real.capture.torch_private import distributed as compat
from windtunnel.real.capture.virtual_world import messages as mail
from windtunnel.real.capture.virtual_world import peer_data
from windtunnel.real.capture.virtual_world.groups import Group, make_process_group
from windtunnel.real.capture.virtual_world.protocol import Mailbox
from windtunnel.real.capture.virtual_world.refusals import WorldError
from windtunnel.studies.programs.communication import Communication

if TYPE_CHECKING:
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch._ops import OpOverload

    from windtunnel.real.capture.virtual_world.work import Due, VirtualWork

KNOWN_ELEMENTS = 4096  # of a tensor that is followed through collectives: counts of tokens, not tokens


class Listener(Protocol):
    """Who wants to know of every call, and decides how long it takes."""

    def begin(self, call: Communication) -> Due:
        """A call is made now; when does it complete? None: at once."""

    def on_wait(self, call: Communication) -> None:
        """The host has waited for it, and goes on."""


class RealPeers(Protocol):
    """Who truly exchanges data with other real ranks of the same world."""

    def join(self, group: Group) -> None:
        """The script made a group."""

    def start(self, exchange: peer_data.Exchange, group: Group) -> tuple[Callable[[], None], int] | None:
        """Begin a call that other real ranks share: what ends it, and the place it came from (-1: as asked)."""


class World:
    """One per process, as a context manager; it can be entered again after it was left."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        *,
        local_world_size: int = 8,
        peers: peer_data.PeerPolicy = peer_data.PEERS_LIKE_ME,
        listener: Listener | None = None,
        mailbox: Mailbox | None = None,
        mailbox_timeout_s: float = 120.0,
        devices: Sequence[str] = ("cpu", "cuda"),
        around: Callable[[Callable[..., object]], Callable[..., object]] | None = None,
        beside: Collection[int] = (),
        any_can_run: bool = False,
        real_peers: RealPeers | None = None,
    ) -> None:
        """Set up rank `rank` of `world_size`.

        Control messages that come through the mailbox are waited for. `beside` names ranks that are sure to run: what
        they gather and scatter as objects is real too, and `real_peers` exchanges tensors with them. With `any_can_run`
        a rank is started when it is asked for something, so small control tensors and objects are real. `around` wraps
        the kernel of every op of `c10d`, to watch the calls.
        """
        if not 0 <= rank < world_size:
            raise WorldError(f"rank {rank} is not of a world of {world_size}: ranks go from 0 to {world_size - 1}")
        self.rank, self.size = rank, world_size
        self.local_world_size = local_world_size
        self.peers = peers
        self.listener = listener
        self.messages = mail.Messages(self, mailbox, mailbox_timeout_s, beside, any_can_run=any_can_run)
        self.real_peers = real_peers
        self.devices = tuple(devices)
        self.fake = False  # tensors hold no data: shapes only, no copying
        self.calls: list[Communication] | None = None  # recorded while it is a list
        self.notes: list[str] = []  # what peers' data could not be made up, for the user to read
        self.meshes: list[
            tuple[tuple[str, ...], tuple[int, ...]]
        ] = []  # names and sizes of the script's own, each once
        self.coordinates: list[tuple[int, ...]] = []  # of this rank in each
        self.held_meshes: list[weakref.ref[dist.DeviceMesh]] = []  # all, slices too, as long as the script holds them
        self.device_id: torch.device | int | None = None
        self.on_set_up: Callable[[str, str], None] | None = None  # every rank makes a group, or initialises
        self.is_open = False
        self._groups: dict[str, Group] = {}
        self._made: dict[tuple[int, ...], int] = {}
        self._asked: dict[
            int, tuple[object, str]
        ] = {}  # by id of the backend object, held so that the id stays its own
        self._generators: dict[object, object] = {}
        self._thread = threading.local()
        self._patches = Replacements()
        self._library: torch.library.Library | None = None
        self._around = around or (lambda kernel: kernel)

    # ------------------------------------------------------------------------------------------------- open and close

    def __enter__(self) -> World:
        compat.require_tried_torch()
        from windtunnel.real.capture.virtual_world import collectives, functional, initialisation, objects, work

        if compat.c10d().is_initialized():
            raise WorldError(
                "torch.distributed is initialised in this process already; call destroy_process_group() first, "
                "or start the script through windtunnel"
            )
        self.works = work.Works(self._waited)
        self._patches.set(sys, "excepthook", sys.excepthook)  # init_process_group puts its own in front
        self.is_open = True
        try:
            calls = collectives.Answers(self)
            self._functional = functional.Functional(self, calls)
            self._kernels = {name: self._around(kernel) for name, kernel in calls.kernels().items()}
            self._install_kernels()
            initialisation.install(self, self._patches, self.messages)
            initialisation.wrap_group_methods(self, self._patches)
            initialisation.watch_meshes(self, self._patches)
            compat.shard_lazily(self._patches)
            objects.install(self, calls, self.messages, self._patches)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        self.works.closing = True
        try:
            if compat.c10d().is_initialized():
                compat.c10d().destroy_process_group()
        finally:
            self.works.timer.stop()
            if self._library is not None:
                compat.destroy_library(self._library)
                self._library = None
            self._patches.undo()
            self._groups.clear()
            self._made.clear()
            self._asked.clear()
            self.device_id = None
            self.is_open = False

    def _install_kernels(self) -> None:
        import warnings

        self._library = compat.kernel_library("c10d")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says once per process that kernels are overridden: so it is meant
            for name, kernel in self._kernels.items():
                keys = ("CPU", "CUDA", "SparseCPU", "SparseCUDA") if name == "allreduce_" else ("CPU", "CUDA")
                for key in keys:
                    self._library.impl(name, kernel, key, allow_override=True)

    # ------------------------------------------------------------------------------------------------------- groups

    def check_rank(self, rank: int, what: str) -> None:
        """Refuse another rank than this world's; -1 leaves it open."""
        self._check(what, rank, self.rank, "its rank from the environment (RANK)")

    def check_size(self, size: int) -> None:
        """Refuse another size than this world's; -1 leaves it open."""
        self._check("world_size", size, self.size, "it from the environment (WORLD_SIZE)")

    def _check(self, what: str, value: int, own: int, remedy: str) -> None:
        if value not in (-1, own):
            raise WorldError(
                f"init_process_group was given {what} {value}, but this process is rank {self.rank} of {self.size}; "
                f"let the script take {remedy}"
            )

    def make_group(
        self,
        members: tuple[int, ...],
        backend_name: str,
        name: str,
        store: dist.Store,
        *,
        desc: str | None,
        timeout: timedelta | None,
        device_id: torch.device | int | None,
    ) -> Group:
        """A group that this rank is in; no members: all ranks."""
        import torch

        members = tuple(map(int, members)) or tuple(range(self.size))  # they may come from an array
        position = members.index(self.rank)
        ordinal = self._made.get(members, 0)
        self._made[members] = ordinal + 1
        handle, backend = make_process_group(
            members,
            position,
            backend_name,
            store,
            name,
            desc=desc,
            timeout=timeout,
            device_id=device_id or self.device_id,
            extra_devices=() if "cuda" in self.devices and torch.cuda.is_available() else self.devices,
        )
        self._asked[id(backend)] = (backend, backend_name)
        group = Group(
            name, members, position, backend_name, ordinal, handle, "" if desc in (None, "undefined") else str(desc)
        )
        self._groups[name] = group
        if self.real_peers is not None:
            self.real_peers.join(group)
        return group

    def group_of(self, boxed: torch.ScriptObject) -> Group:
        """Ours, of what a dispatcher op or a script calls the group."""
        return self._groups[compat.unboxed_group(boxed).group_name]

    def group_named(self, name: str) -> Group | None:
        """The group that torch calls so, if this rank is in it."""
        return self._groups.get(name)

    def note_set_up(self, kind: str, about: str) -> None:
        """The script makes a group, or initialises: what every rank does."""
        if self.on_set_up is not None:
            self.on_set_up(kind, about)

    def note_mesh(self, names: tuple[str, ...], sizes: tuple[int, ...], coordinate: tuple[int, ...]) -> None:
        """The script made a mesh."""
        if (names, sizes) not in self.meshes:
            self.meshes.append((names, sizes))
            self.coordinates.append(coordinate)

    def backend_name_of(self, backend: object) -> str:
        """What the script asked for where it now has this backend object ("gloo", "cpu:gloo,cuda:nccl")."""
        entry = self._asked.get(id(backend))
        return str(entry[1]) if entry else "fake"

    # --------------------------------------------------------------------------------------------------------- calls

    def begin(self, call: Communication) -> Due:
        """A call is made: note it, and ask when it completes."""
        if self.calls is not None:
            self.calls.append(call)
        return self.listener.begin(call) if self.listener is not None else None

    def _waited(self, call: Communication) -> None:
        if self.listener is not None:
            self.listener.on_wait(call)

    def wait_for(self, call: Communication, due: Due) -> None:
        """Block until a call of this thread is done that has no `Work`."""
        from windtunnel.real.capture.virtual_world import work

        work.wait_until(due)
        self._waited(call)

    def work(
        self, calls: tuple[Communication, ...], due: Due, outputs: Sequence[torch.Tensor], group: Group, source: int
    ) -> VirtualWork:
        """What the caller is handed."""
        from windtunnel.real.capture.virtual_world import work

        ending, self._thread.ending = getattr(self._thread, "ending", None), None
        virtual_work = work.VirtualWork(calls, due, outputs, self.works, source, ending)
        if group.batch is not None:
            group.batch.append(virtual_work)
        return virtual_work

    def deliver(self, exchange: peer_data.Exchange, group: Group) -> int:
        """Fill the outputs; the group rank that it came from, where the receiver did not say."""
        call = exchange.call
        if self.real_peers is not None:
            start = self.real_peers.start(exchange, group)
            if start is not None:
                self._thread.ending, source = start
                return source
        source = (group.position - 1) % group.size if call.kind == "recv" and call.peer < 0 else -1
        if self.messages.deliver(exchange, group):
            return self.messages.last_source if source >= 0 else source
        if not self.is_fake((*exchange.inputs, *exchange.outputs)):
            if not self.messages.exchange_control(exchange, group):
                with compat.below_autograd():
                    self.peers.fill(exchange)
            return source
        if call.kind == "recv" and call.is_control:
            peer_data.like_me(exchange)  # refuses
        self.carry_known(exchange, group)
        return source

    def carry_known(self, exchange: peer_data.Exchange, group: Group, *, fresh: bool = False) -> None:
        """Fake outputs of known inputs are known; of others they are unknown, which `fresh` ones are anyway."""
        if self.messages.exchange_control(exchange, group):
            return
        value_exchange = self._with_known_values(exchange)
        if value_exchange is not None:
            with compat.outside_modes(), compat.below_autograd():
                self.peers.fill(value_exchange)
        elif fresh:
            return
        for number, output in enumerate(exchange.outputs):
            self.let_know(
                output, None if value_exchange is None else value_exchange.outputs[number], assumed=exchange.size > 1
            )

    def is_fake(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether one of the tensors holds no data."""
        fake = compat.fake_tensor_class()
        return any(isinstance(tensor, fake) or tensor.device.type == "meta" for tensor in tensors)

    def outputs_of(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """What an op gives on fake tensors. A recorder may be quicker: replace it."""
        return func(*args, **kwargs)

    def known_value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A real tensor with a tensor's values; None where nobody knows them. A recorder may know more: replace it."""
        return compat.known_value(tensor) if tensor.device.type != "meta" else None

    def exact_value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """`known_value`, unless it rests on what other ranks are taken to hold. A recorder may replace it."""
        return self.known_value(tensor)

    def let_know(self, tensor: torch.Tensor, value: object, assumed: bool = False) -> None:
        """A tensor was given these values, or (None) unknown ones. A recorder may keep account of them: replace it.

        `assumed`: peers that do not run are taken to hold what this rank holds.
        """
        del assumed
        fake = isinstance(tensor, compat.fake_tensor_class())
        if not fake and value is not None:
            with compat.below_autograd():
                tensor.copy_(value)
        elif fake and value is not None:
            compat.set_known_value(tensor, value)
        elif fake and tensor.constant is not None:
            tensor.constant = None

    def _with_known_values(self, exchange: peer_data.Exchange) -> peer_data.Exchange | None:
        """The exchange on what fake tensors are known to hold; None where one is not known."""
        from windtunnel.real.capture.torch_private import factories as plain

        if any(tensor.numel() > KNOWN_ELEMENTS for tensor in (*exchange.inputs, *exchange.outputs)):
            return None
        values = {id(tensor): self.known_value(tensor) for tensor in exchange.inputs}
        if not values or any(value is None for value in values.values()):
            return None
        with compat.outside_modes():
            for number, tensor in enumerate(exchange.outputs):
                if id(tensor) not in values:  # functional collectives have outputs where others work in place
                    place = exchange.call.kind in ("all_reduce", "broadcast")
                    own = values[id(exchange.inputs[number])] if place else None
                    values[id(tensor)] = (
                        plain.empty(tensor.shape, dtype=tensor.dtype, device="cpu") if own is None else own.clone()
                    )
        own = tuple(values[id(tensor)] for tensor in exchange.inputs)
        theirs = tuple(values[id(tensor)] for tensor in exchange.outputs)
        return replace(exchange, inputs=own, outputs=theirs)

    def noise(self, tensor: torch.Tensor) -> None:
        """Fill a tensor with noise, without a step of the script's own random numbers."""
        import torch

        generator = self._generators.get(tensor.device)
        if generator is None:
            generator = self._generators[tensor.device] = torch.Generator(device=tensor.device)
            generator.manual_seed(self.rank)
        peer_data.fill_with_noise(tensor, generator)

    @property
    def premul_factor(self) -> object:
        """Of the premultiplied sum that this thread is about to ask for."""
        return getattr(self._thread, "factor", None)

    @premul_factor.setter
    def premul_factor(self, factor: object) -> None:
        self._thread.factor = factor

    # -------------------------------------------------------------------------------------------------- for recorders

    def answer(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object] | None = None) -> object:
        """Answer an op of `c10d` or `_c10d_functional` that a dispatch mode was given, on any tensors."""
        name = func._schema.name.split("::")[1]
        if func.namespace == "c10d" and name in self._kernels:
            return self._kernels[name](*args, **(kwargs or {}))
        return self._functional.answer(func, name, args, kwargs or {})
