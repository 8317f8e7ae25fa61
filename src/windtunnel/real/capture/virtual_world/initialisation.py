"""What of `torch.distributed`'s set-up is replaced while a world is open: finding peers, and making groups of them.

torch's own `init_process_group`, `new_group`, `DeviceMesh`, ... run as they are. They end in three functions that
talk to peers, and those are ours: the rendezvous, the making of one group, and the split of a group. A few more
functions check what a machine without GPUs cannot offer, and are told about the machine that is pretended.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlparse

from windtunnel.real.capture.replacements import Replacements
from windtunnel.real.capture.torch_private import distributed as compat
from windtunnel.real.capture.virtual_world.messages import Messages
from windtunnel.real.capture.virtual_world.protocol import AnsweringWorld
from windtunnel.real.capture.virtual_world.refusals import UnsupportedCommunicationError
from windtunnel.studies.programs.rank_classes.findings import AT_ONCE, ranks_text

if TYPE_CHECKING:
    from types import ModuleType

    import torch
    import torch.distributed as dist
    from torch.distributed import DeviceMesh

_GIVE_WORK = (
    *("allreduce", "allreduce_coalesced", "reduce", "broadcast", "allgather", "_allgather_base", "allgather_coalesced"),
    *("allgather_into_tensor_coalesced", "all_gather_single", "all_gather_single_coalesced", "gather", "scatter"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("reduce_scatter_tensor_coalesced", "all_to_all_single", "alltoall_base", "alltoall", "recv", "recv_anysource"),
)
NCCL_TIMEOUT = timedelta(minutes=10)  # torch's default for nccl; a build without it has none


def replace_public(
    patches: Replacements, name: str, make: Callable[[Callable[..., object]], Callable[..., object]]
) -> None:
    """Replace a public function wherever torch itself has imported it; `make` is given the original."""
    original = getattr(compat.c10d(), name)
    new = functools.wraps(original)(make(original))
    for module in compat.modules_that_name_group_functions():
        if vars(module).get(name) is original:
            patches.set(module, name, new)


def install(world: AnsweringWorld, patches: Replacements, messages: Messages) -> None:
    """Replace what finds peers and what makes groups."""
    import torch.distributed as dist

    from windtunnel.real.capture.virtual_world import stores

    c10d = compat.c10d()

    def rendezvous(
        url: str, rank: int = -1, world_size: int = -1, **_: object
    ) -> Iterator[tuple[dist.Store, int, int]]:
        query = parse_qs(urlparse(url).query)
        world.check_rank(int(query["rank"][0]) if "rank" in query else rank, "rank")
        world.check_size(int(query["world_size"][0]) if "world_size" in query else world_size)
        yield stores.LocalStore(world.rank, messages), world.rank, world.size

    def new_process_group_helper(
        group_size: int,
        group_rank: int,
        global_ranks_in_group: list[int],
        backend: str,
        store: dist.Store,
        group_name: str,
        backend_options: object = None,
        timeout: timedelta | None = None,
        pg_tag: str | None = None,
        device_id: object = None,
        group_desc: str | None = None,
        **_more: object,  # of other versions of torch
    ) -> tuple[object, object]:
        ranks = global_ranks_in_group
        if not ranks:
            world.check_rank(group_rank, "rank")
            world.check_size(group_size)
        elif world.rank not in ranks:
            return c10d.GroupMember.NON_GROUP_MEMBER, None
        if pg_tag and (existing := c10d._find_pg_by_ranks_and_tag(pg_tag, ranks)):
            return existing, compat.group_state().pg_map[existing][1]
        group = world.make_group(
            tuple(ranks), backend, group_name, store, desc=group_desc, timeout=timeout, device_id=device_id
        )
        tags = (f"user:{pg_tag}",) if pg_tag else ("", f"ptd:{group_name}")
        compat.register_group(group.handle, backend, store, group_name, tags)
        return group.handle, store

    patches.set(c10d, "rendezvous", rendezvous)
    patches.set(dist, "rendezvous", rendezvous)
    patches.set(c10d, "_new_process_group_helper", new_process_group_helper)
    patches.set(c10d, "_store_based_barrier", _nothing)  # TORCH_DIST_INIT_BARRIER=1: counts ranks that are not there
    patches.set(c10d, "_set_pg_timeout", _nothing)  # nothing here times out
    patches.set(dist, "TCPStore", stores.tcp_store(world.rank, messages))
    _pretend_nccl(world, patches, c10d, dist)
    replace_public(patches, "init_process_group", lambda original: _init(world, original))
    replace_public(patches, "new_group", lambda original: _new_group(world, original))
    replace_public(patches, "split_group", lambda original: _split_group(world, original))
    replace_public(
        patches, "shrink_group", lambda _: _refuse("shrink_group", "start the script again with fewer ranks")
    )
    rpc = getattr(dist, "rpc", None)
    if hasattr(rpc, "init_rpc"):
        patches.set(rpc, "init_rpc", _refuse("torch.distributed.rpc", "use collectives or send and receive"))


def _init(world: AnsweringWorld, original: Callable[..., object]) -> Callable[..., object]:
    """`device_id` names a GPU that this machine may not have: it is taken off before torch looks, and kept."""

    def init_process_group(
        backend: str | None = None, *args: object, device_id: Any = None, **kwargs: object
    ) -> object:
        if not world.is_open:
            return original(backend, *args, device_id=device_id, **kwargs)
        if isinstance(device_id, int):
            import torch

            device_id = torch.device("cuda", device_id)
        if backend is None and device_id is not None:
            backend = compat.c10d().Backend.default_device_backend_map.get(device_id.type)
        world.device_id = device_id if device_id is not None and device_id.index is not None else None
        about = (str(backend or ""), *([AT_ONCE] if world.device_id is not None else []))
        world.note_set_up("init_process_group", ", ".join(about))
        return original(backend, *args, **kwargs)

    return init_process_group


def _new_group(world: AnsweringWorld, original: Callable[..., object]) -> Callable[..., object]:
    """Every rank of the world makes it, whether it is a member or not, unless it is said to be local."""
    arguments_of = signature(original)

    def new_group(*args: object, **kwargs: object) -> object:
        if world.is_open:
            arguments = arguments_of.bind(*args, **kwargs).arguments
            ranks = arguments.get("ranks")
            if not arguments.get("use_local_synchronization"):
                world.note_set_up("new_group", "all" if ranks is None else ranks_text(tuple(ranks)))
        return original(*args, **kwargs)

    return new_group


def _split_group(world: AnsweringWorld, original: Callable[..., object]) -> Callable[..., object]:
    """torch's asks the backend to split its communicator; there is none, and ranks are all it takes."""

    def split_group(
        parent_pg: dist.ProcessGroup = None,
        split_ranks: list[list[int]] | None = None,
        timeout: timedelta | None = None,
        pg_options: object = None,
        group_desc: str | None = None,
        backend: str | None = None,
        **more: object,  # of other versions of torch
    ) -> object:
        if not world.is_open:
            if backend is not None:  # 2.12 takes none
                more["backend"] = backend
            return original(parent_pg, split_ranks, timeout, pg_options, group_desc, **more)
        if not split_ranks:
            raise ValueError("split_ranks cannot be None or empty")
        c10d, state = compat.c10d(), compat.group_state()
        parent = world.group_of(parent_pg if parent_pg is not None else c10d._get_default_group())
        for ranks in split_ranks:
            if not ranks or len(ranks) != len(set(ranks)):
                raise ValueError(f"a split must name ranks, each once, got {ranks}")
        if len(parent.members) == world.size:
            world.note_set_up("split_group", "world")
        mine = next((sorted(ranks) for ranks in split_ranks if parent.position in ranks), None)
        if mine is None:
            return None
        members = tuple(parent.members[rank] for rank in mine)
        backend_name, store = state.pg_map[parent.handle]
        name = c10d._process_group_name(mine, use_hashed_name=True)
        desc = group_desc or f"{parent.handle.group_desc}:split"
        group = world.make_group(
            members, str(backend or backend_name), name, store, desc=desc, timeout=timeout, device_id=world.device_id
        )
        ranks_of = {rank: position for position, rank in enumerate(members)}
        compat.register_group(group.handle, str(backend or backend_name), store, name, (f"ptd:{name}",))
        compat.group_state().pg_group_ranks[group.handle] = ranks_of
        return group.handle

    return split_group


def _pretend_nccl(world: AnsweringWorld, patches: Replacements, c10d: ModuleType, dist: ModuleType) -> None:
    """A CPU build lacks `ProcessGroupNCCL`, whose options scripts fill in before they ask for nccl."""
    if c10d.default_pg_nccl_timeout is None:
        patches.set(c10d, "default_pg_nccl_timeout", NCCL_TIMEOUT)
    if not hasattr(dist, "ProcessGroupNCCL"):
        for module in (c10d, dist):
            patches.set(module, "ProcessGroupNCCL", _PretendedNccl)
        if "cuda" in world.devices:
            patches.set(c10d, "_NCCL_AVAILABLE", True)


class _NcclOptions:
    """Takes what `ProcessGroupNCCL.Options` takes, and keeps it."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.config = SimpleNamespace()
        self._timeout = NCCL_TIMEOUT
        self.split_from: dist.ProcessGroup | None = None
        self.split_color = -1
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""


class _PretendedNccl:
    """Stands where a build with NCCL has its class."""

    Options = _NcclOptions


def _refuse(what: str, remedy: str) -> Callable[..., object]:
    def refuse(*_: object, **__: object) -> object:
        raise UnsupportedCommunicationError(what, remedy)

    return refuse


def _nothing(*_: object, **__: object) -> None:
    return None


def wrap_group_methods(world: AnsweringWorld, patches: Replacements) -> None:
    """Methods of torch's `ProcessGroup` that C++ would answer on the backend, or with a GPU that may not be there."""
    from windtunnel.real.capture.virtual_world import work

    cls, fake = compat.c10d().ProcessGroup, compat.fake_backend()
    barrier, options_class = cls.barrier, compat.c10d().BarrierOptions

    def barrier_on_host(group: dist.ProcessGroup | None, *args: object, **kwargs: object) -> object:
        import torch

        matches = [value for value in (*args, *kwargs.values()) if isinstance(value, options_class)]
        options = matches[0] if matches else options_class()
        options.device = torch.device("cpu")  # torch would make a tensor on the group's GPU to find the kernel by
        return barrier(group, options)

    def start_coalescing(group: dist.ProcessGroup | None, _device: torch.device) -> None:
        world.group_of(group).start_batch()

    def end_coalescing(group: dist.ProcessGroup | None, _device: torch.device) -> object:
        return work.Handle(world.works.join(world.group_of(group).end_batch()))

    patches.set(cls, "barrier", barrier_on_host)
    patches.set(cls, "_start_coalescing", start_coalescing)
    patches.set(cls, "_end_coalescing", end_coalescing)
    for name in (
        *("allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base"),
        *("reduce_scatter_single", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
    ):
        if hasattr(cls, name):  # 2.12 has no `single`
            patches.set(cls, name, _noting_factor(world, getattr(cls, name)))
    for name in _GIVE_WORK:
        if hasattr(cls, name):
            patches.set(cls, name, _giving_handle(getattr(cls, name)))
    name_of = world.backend_name_of
    # nccl runs a batch of sends and receives as one; that decides how many works `batch_isend_irecv` returns
    patches.set(fake, "supports_coalescing", property(lambda backend: "ccl" in name_of(backend)))
    patches.set(fake, "name", name_of)
    patches.set(cls, "name", lambda group: world.group_of(group).backend_name)
    patches.set(fake, "set_timeout", _nothing)
    patches.set(fake, "_set_default_timeout", _nothing)


def _giving_handle(method: Callable[..., object]) -> Callable[..., object]:
    """Python holds a handle of its own, which keeps the tensors as the real library's does."""
    from windtunnel.real.capture.virtual_world import work

    @functools.wraps(method)
    def call(*args: object, **kwargs: object) -> object:
        result = method(*args, **kwargs)
        return work.Handle(result) if isinstance(result, work.VirtualWork) else result

    return call


def watch_meshes(world: AnsweringWorld, patches: Replacements) -> None:
    """Note the script's meshes; give a rank its own part of what it holds whole, as a scatter's root would send it."""
    mesh_class = compat.device_mesh_class()
    make = mesh_class.__init__

    @functools.wraps(make)
    def init_mesh(mesh: DeviceMesh, *args: object, **kwargs: object) -> None:
        make(mesh, *args, **kwargs)
        world.held_meshes.append(weakref.ref(mesh))
        coordinate = mesh.get_coordinate() if mesh._root_mesh is None else None
        if coordinate is not None:
            world.note_mesh(tuple(mesh.mesh_dim_names or ()), tuple(mesh.shape), tuple(coordinate))

    patches.set(mesh_class, "__init__", init_mesh)
    scatter = compat.modules_that_scatter_meshes()[0].mesh_scatter

    @functools.wraps(scatter)
    def scatter_own(
        output: torch.Tensor,
        parts: list[torch.Tensor],
        mesh: DeviceMesh,
        mesh_dim: int = 0,
        *args: object,
        **kwargs: object,
    ) -> object:
        work = scatter(output, parts, mesh, mesh_dim, *args, **kwargs)
        position = mesh.get_group(mesh_dim).rank()
        not_root = position != kwargs.get("group_src", 0)
        if not_root and world.peers.gives_own("scatter") and not world.is_fake((output, parts[position])):
            with compat.below_autograd():
                output.copy_(parts[position])
        return work

    for module in compat.modules_that_scatter_meshes():
        patches.set(module, "mesh_scatter", scatter_own)


def _noting_factor(world: AnsweringWorld, method: Callable[..., object]) -> Callable[..., object]:
    """Note the factor of a premultiplied sum on its way: its script object does not show it to Python kernels."""

    reduce_op = compat.c10d().ReduceOp

    @functools.wraps(method)
    def reduce(group: dist.ProcessGroup | None, *args: object, **kwargs: object) -> object:
        for value in (*args, *kwargs.values()):
            op = getattr(value, "reduceOp", value)
            if isinstance(op, reduce_op) and op.op == reduce_op.PREMUL_SUM:
                world.premul_factor = getattr(op, "factor", None)  # 2.12 shows none: taken as 1
        return method(group, *args, **kwargs)

    return reduce
