"""A virtual world as the modules see it that answer for its peers, and the mailbox that it may have."""

# ruff: noqa: D102  # described in `world.py`

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from windtunnel.real.capture.virtual_world.groups import Group
from windtunnel.real.capture.virtual_world.peer_data import Exchange, PeerPolicy
from windtunnel.real.capture.virtual_world.work import Due, Works
from windtunnel.studies.programs.communication import Communication

if TYPE_CHECKING:
    import weakref
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch._ops import OpOverload
    from torch.distributed import DeviceMesh


class Mailbox(Protocol):
    """Control messages between the ranks of a world that do run, with their real data.

    A message's key names the group, sender, receiver, tag and its number, so this is a dictionary with waiting: nothing
    is taken out, several may read the same message (a broadcast).
    """

    def post(self, key: str, data: bytes) -> None:
        """Leave a message."""

    def get(self, key: str, timeout_s: float) -> bytes:
        """Wait for a message; `TimeoutError` if it does not come."""


class AnsweringWorld(Protocol):
    """What `World` has for them; there each is described."""

    rank: int
    size: int
    is_open: bool
    devices: tuple[str, ...]
    device_id: torch.device | int | None
    notes: list[str]
    held_meshes: list[weakref.ref[DeviceMesh]]
    peers: PeerPolicy
    works: Works
    premul_factor: object

    def check_rank(self, rank: int, what: str) -> None: ...
    def check_size(self, size: int) -> None: ...
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
    ) -> Group: ...
    def group_of(self, boxed: object) -> Group: ...
    def note_set_up(self, kind: str, about: str) -> None: ...
    def note_mesh(self, names: tuple[str, ...], sizes: tuple[int, ...], coordinate: tuple[int, ...]) -> None: ...
    def backend_name_of(self, backend: object) -> str: ...
    def begin(self, call: Communication) -> Due: ...
    def wait_for(self, call: Communication, due: Due) -> None: ...
    def work(
        self, calls: tuple[Communication, ...], due: Due, outputs: Sequence[object], group: Group, source: int
    ) -> object: ...
    def deliver(self, exchange: Exchange, group: Group) -> int: ...
    def carry_known(self, exchange: Exchange, group: Group, *, fresh: bool = False) -> None: ...
    def is_fake(self, tensors: Sequence[object]) -> bool: ...
    def outputs_of(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object: ...
    def known_value(self, tensor: torch.Tensor) -> torch.Tensor | None: ...
    def exact_value(self, tensor: torch.Tensor) -> torch.Tensor | None: ...
    def let_know(self, tensor: torch.Tensor, value: object, assumed: bool = False) -> None: ...
    def noise(self, tensor: torch.Tensor) -> None: ...
