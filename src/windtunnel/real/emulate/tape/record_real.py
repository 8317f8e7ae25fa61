"""Recording a tape: the wrapper around a rank of a *real* job that keeps what its peers said.

Every op of `c10d` that the dispatcher knows is wrapped by one that asks the real backend and keeps the outputs once
somebody has waited for them, before the script can change them. What a `Work`'s future is asked for is kept when the
future completes. Recording costs a copy of everything received; times of such a run mean nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
import torch.distributed as dist

from windtunnel.real.capture.torch_private import distributed as compat
from windtunnel.real.capture.torch_private.emulate import backend_of
from windtunnel.real.capture.virtual_world.collectives import NO_COMMUNICATION, Answers
from windtunnel.real.capture.virtual_world.groups import Group
from windtunnel.real.capture.virtual_world.peer_data import Exchange
from windtunnel.real.emulate.tape.real_calls import issued
from windtunnel.real.emulate.tape.tape import Key, Numbering, TapeWriter, bytes_of
from windtunnel.studies.programs.communication import Communication

if TYPE_CHECKING:
    from datetime import timedelta

    from torch._C import DispatchKeySet


class Kernel(Protocol):
    """torch's kernel of an op on a device."""

    def call_boxed(self, keyset: DispatchKeySet, *args: object) -> object:
        """The op, by this kernel."""


class Recording:
    """A context in which this process's communications are kept."""

    def __init__(
        self,
        tape: TapeWriter | None,
        devices: Sequence[str] = ("CPU",),
        heard: Callable[[Communication], None] | None = None,
    ) -> None:
        """`heard` is told of every communication; without a tape that is all."""
        self._tape, self._devices, self._heard = tape, devices, heard
        self._numbering = Numbering()
        self._asking = _Asking()
        self._libraries: list[torch.library.Library] = []
        self._works: set[KeptWork] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Recording:
        import warnings

        answers = Answers(cast(Any, self._asking))
        kernels = answers.kernels()
        library = compat.kernel_library("c10d")
        self._libraries.append(library)
        for name in compat.dispatcher_ops("c10d"):
            if name in NO_COMMUNICATION:
                continue
            for device in self._devices:
                original = _kernel(f"c10d::{name}", device)
                if original is not None:
                    wrapped = self._wrapped(name, device, original, kernels[name])
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # torch says that kernels are overridden: so it is meant
                        library.impl(name, wrapped, device, with_keyset=True, allow_override=True)
        return self

    def __exit__(self, *_: object) -> None:
        for library in self._libraries:
            compat.destroy_library(library)
        self._libraries.clear()

    def _wrapped(
        self, name: str, device: str, original: Kernel, describe: Callable[..., object]
    ) -> Callable[..., object]:
        def kernel(keyset: DispatchKeySet, *args: object) -> object:
            with self._lock:
                self._asking.exchange = None
                describe(*args)
                exchange, group = self._asking.exchange, self._asking.group
                self._asking.exchange = None  # it would hold these tensors until the next call
                key = self._numbering.key(exchange.call, exchange.outputs) if exchange is not None else ()
            if exchange is not None and self._heard is not None:
                self._heard(exchange.call)
            work_and_outputs = None if exchange is None else issued(name, backend_of(group, device.lower()), args)
            if work_and_outputs is None:  # an op that no method of a backend answers
                result = original.call_boxed(keyset, *args)
                parts = result if isinstance(result, tuple) else (result,)
                if not isinstance(parts[-1], torch.ScriptObject):
                    return result
                work_and_outputs = (dist.Work.unbox(parts[-1]), parts[0] if len(parts) == 2 else None)
            work, outputs = work_and_outputs
            if self._tape is not None and exchange is not None and exchange.call.kind not in ("send", "barrier"):
                work = KeptWork(work, exchange.outputs, self, key)
                self._works.add(work)
            boxed = compat.boxed_work(work)
            return boxed if outputs is None else (outputs, boxed)

        return kernel

    def keep(self, work: KeptWork, key: Key, tensors: Sequence[torch.Tensor]) -> None:
        """Keep the outputs of a communication that is done."""
        data = [bytes_of(tensor) for tensor in tensors]
        with self._lock:
            self._works.discard(work)
            if self._tape is not None:
                self._tape.add(key, data)

    def unread(self) -> int:
        """Communications whose results nobody waited for: they are not on the tape."""
        return len(self._works)


class KeptWork(dist.Work):  # type: ignore[misc]
    """torch's own `Work`, whose outputs are kept as soon as they are there."""

    def __init__(self, work: dist.Work, outputs: Sequence[torch.Tensor], recording: Recording, key: Key) -> None:
        super().__init__()
        self._work, self._outputs, self._recording, self._key = work, list(outputs), recording, key
        self._done = False

    def _keep(self) -> None:
        if not self._done:
            self._done = True
            outputs, self._outputs = self._outputs, []
            self._recording.keep(self, self._key, outputs)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait as torch's work does, then keep the outputs."""
        done = bool(self._work.wait() if timeout is None else self._work.wait(timeout))
        self._keep()
        return done

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """The same as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """As torch's."""
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        """As torch's."""
        return bool(self._work.is_success())

    def exception(self) -> object:
        """As torch's."""
        return self._work.exception()

    def result(self) -> list[torch.Tensor]:
        """As torch's."""
        tensors: list[torch.Tensor] = self._work.result()
        return tensors

    def source_rank(self) -> int:
        """As torch's."""
        return int(self._work._source_rank())

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        """torch's own, with the outputs kept before whatever is chained to it."""

        def keep_outputs(future: torch.futures.Future) -> object:
            value = future.value()
            self._keep()
            return value

        return self._work.get_future().then(keep_outputs)


def _kernel(op: str, device: str) -> Kernel | None:
    """torch's own kernel; None where the op has none for this device."""
    try:
        kernel: Kernel = torch.library.get_kernel(op, device)
        return kernel
    except RuntimeError:
        return None


class _Asking:
    """What `Answers` asks a world for, to learn what a call is; nothing is answered."""

    def __init__(self) -> None:
        self.exchange: Exchange | None = None
        self.group: dist.ProcessGroup | None = None  # that was asked about last
        self.premul_factor: float | torch.Tensor | None = None
        self._groups: dict[str, Group] = {}

    def noise(self, tensor: torch.Tensor) -> None:
        """Nothing is filled."""

    def group_of(self, boxed: object) -> Group:
        """The group that an op was given."""
        self.group = handle = compat.unboxed_group(boxed)
        name = str(handle.group_name)
        if name not in self._groups:
            members = tuple(dist.get_process_group_ranks(handle))
            self._groups[name] = Group(name, members, handle.rank(), "", 0, handle)
        return self._groups[name]

    def begin(self, call: object) -> None:
        """It takes what it takes."""

    def deliver(self, exchange: Exchange, group: Group) -> int:
        """Remember it."""
        self.exchange = exchange
        return -1

    def work(self, *_: object) -> _Nothing:
        """A stand-in that is thrown away."""
        return _NOTHING

    def wait_for(self, call: object, due: object) -> None:
        """The real library waits."""


class _Nothing:
    def boxed(self) -> None:
        """Nobody looks at it."""


_NOTHING = _Nothing()
