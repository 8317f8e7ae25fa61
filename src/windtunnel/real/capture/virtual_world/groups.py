"""Process groups of a virtual world: torch's own objects on its "fake" backend, in O(1) memory and without store
traffic.

torch keeps its tables (names, ranks, tags), so `get_rank`, `new_group`, `DeviceMesh` and the rest work as they are;
only what would talk to peers is ours. The tables hold the backend that the script asked for, which is what
`get_backend` answers.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from windtunnel.real.capture.torch_private import distributed as compat
from windtunnel.studies.programs.communication import MESSAGES

if TYPE_CHECKING:
    from datetime import timedelta

    import torch
    import torch.distributed as dist


@dataclass(eq=False)
class Group:
    """One process group that this rank is in, and how many calls it has made on it."""

    name: str  # torch's
    members: tuple[int, ...]  # global ranks; every call on the group shares this tuple
    position: int  # of this rank
    backend_name: str  # the backend that the script asked for
    ordinal: int  # of the groups with these members, in the order in which they were made
    handle: dist.ProcessGroup = None  # torch's ProcessGroup
    description: str = ""  # that the script or a mesh gave
    collectives: int = 0
    messages: dict[tuple[str, int], int] = field(default_factory=dict)
    batches: int = 0
    batch: list[dist.Work] | None = None  # works issued since a coalescing manager was entered

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.members)

    @property
    def title(self) -> str:
        """What a person calls it."""
        return self.description.removeprefix("mesh_") or (self.name if not self.name.isdigit() else "")

    @cached_property
    def key(self) -> str:
        """The same on all members, whatever torch calls it there (some names count the groups of the rank itself)."""
        return f"{zlib.crc32(repr(self.members).encode()):08x}.{self.ordinal}"

    def next_sequence(self, kind: str, peer: int) -> int:
        """Number of this call among the group's collectives, or among the messages of its kind with that peer."""
        if kind in MESSAGES:
            number = self.messages.get((kind, peer), 0)
            self.messages[kind, peer] = number + 1
            return number
        self.collectives += 1
        return self.collectives - 1

    def start_batch(self) -> None:
        """What is issued from here on is one call."""
        self.batches += 1
        self.batch = []

    def end_batch(self) -> list[dist.Work]:
        """The works that were issued."""
        works, self.batch = self.batch or [], None
        return works


def make_process_group(
    members: tuple[int, ...],
    position: int,
    backend_name: str,
    store: dist.Store,
    name: str,
    *,
    desc: str | None,
    timeout: timedelta | None,
    device_id: torch.device | int | None,
    extra_devices: tuple[str, ...],
) -> tuple[object, object]:
    """torch's `ProcessGroup`, and its backend: one that does nothing, for each device that the asked one serves."""
    c10d, fake = compat.c10d(), compat.fake_backend()
    group = c10d.ProcessGroup(store, position, len(members))
    served = c10d.BackendConfig(c10d.Backend(backend_name)).get_device_backend_map()
    options = fake.Options()
    if timeout is not None:
        options._timeout = timeout
    options.group_name, options.global_ranks_in_group = name, list(members)
    backend = fake._create_internal(position, len(members), options)
    if device_id is not None:
        group.bound_device_id = device_id
    # a script may ask for nccl and find itself on a machine without a GPU
    compat.register_backend(group, dict.fromkeys((*served, *extra_devices)), backend)
    compat.name_backend(group, name, desc or "undefined")
    return group, backend
