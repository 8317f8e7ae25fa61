"""Every private name of PyTorch that a virtual world, the recorder or the emulation touches, and why.

Private names move between versions. They are all here, each with its reason, and `require_tried_torch` warns of a
version that nobody has looked at, and refuses one that is too old.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from windtunnel.real.capture.replacements import Replacements, in_context
from windtunnel.real.capture.virtual_world.refusals import UnsupportedCommunicationError, UntriedTorchError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import ModuleType

    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.distributed import DeviceMesh
    from torch.distributed.distributed_c10d import _World

TRIED = ("2.12", "2.13", "2.14", "2.15")
OLDEST = (2, 12)  # newer ones than were tried are tried; in older ones too much is missing
ANY_TORCH = "WINDTUNNEL_ANY_TORCH"


def require_tried_torch() -> None:
    """Warn unless this is a PyTorch that the names below were checked on. Raises UntriedTorchError for an old one."""
    import torch

    version = str(torch.__version__)
    if ".".join(version.split(".")[:2]) in TRIED:
        return
    releases = ", ".join(f"{v}.x" for v in TRIED)
    problem = f"PyTorch {version}: virtual peers rely on internals that were checked on {releases} only"
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    if tuple(numbers) < OLDEST and os.environ.get(ANY_TORCH) != "1":
        raise UntriedTorchError(f"{problem}; install one of these, or set {ANY_TORCH}=1 to try this one")
    warnings.warn(problem, stacklevel=2)


# Names, and why each is needed


def c10d() -> ModuleType:
    """The module behind `torch.distributed`: its functions look each other up here, so replacing one reaches all."""
    import torch.distributed.distributed_c10d

    module: ModuleType = torch.distributed.distributed_c10d
    return module


def modules_that_name_group_functions() -> tuple[object, ...]:
    """Who imported `init_process_group`, `split_group` and object collectives by name: each has its own reference."""
    import torch.distributed as dist
    import torch.distributed.device_mesh as device_mesh

    return c10d(), dist, device_mesh


def modules_that_scatter_meshes() -> tuple[ModuleType, ...]:
    """Who names `mesh_scatter`, with which DTensor hands each rank its part of a tensor that all ranks hold whole."""
    import torch.distributed.tensor._collective_utils as utils
    import torch.distributed.tensor.placement_types as placements

    return utils, placements


def device_mesh_class() -> type[DeviceMesh]:
    """The class of meshes; `_root_mesh` tells a mesh of the script's own from a slice of one."""
    from torch.distributed.device_mesh import DeviceMesh

    mesh_class: type[DeviceMesh] = DeviceMesh
    return mesh_class


def group_state() -> _World:
    """torch's tables of process groups (backend, ranks, names): read by `get_backend`, `get_rank`, `DeviceMesh`."""
    return c10d()._world


def fake_backend() -> type[dist.ProcessGroup]:
    """The backend class that does nothing: no store traffic, no threads, the same size at every world size."""
    from torch._C._distributed_c10d import FakeProcessGroup

    backend: type[dist.ProcessGroup] = FakeProcessGroup
    return backend


def register_group(pg: dist.ProcessGroup, backend: str, store: dist.Store, name: str, tags: tuple[str, ...]) -> None:
    """Enter a process group of ours in all of torch's tables, as `new_group` does inside: there is no public way to.

    It is found by each of its `tags`, and named by the last. 2.12 has no function for this.
    """
    module, state = c10d(), group_state()
    kind = module.Backend(backend)
    state.pg_map[pg], state.pg_names[pg] = (kind, store), name
    state.pg_backend_config[pg] = str(module.BackendConfig(kind))
    module._register_process_group(name, pg)
    for tag in tags:
        state.tags_to_pg.setdefault(tag, []).append(pg)
    state.pg_to_tag[pg] = tags[-1]


def name_backend(pg: dist.ProcessGroup, name: str, desc: str) -> None:
    """Name and describe a process group, as `new_group` does inside."""
    pg._set_group_name(name)
    pg._set_group_desc(desc)


def register_backend(pg: dist.ProcessGroup, devices: Iterable[str], backend: object) -> None:
    """Attach a backend for these device types, as one of none of torch's own kinds.

    C++ (DDP's logger) casts a group that calls itself gloo or nccl to that class, and crashes where it is not.
    """
    import torch

    kind = c10d().ProcessGroup.BackendType.CUSTOM
    for device in devices:
        pg._register_backend(torch.device(device), kind, backend)
    pg._set_default_backend(kind)


def unboxed_group(boxed: torch.ScriptObject) -> dist.ProcessGroup:
    """The process group that a dispatcher op was given: a script object, a group, or the name of one."""
    import torch

    if isinstance(boxed, torch.ScriptObject):
        return c10d().ProcessGroup.unbox(boxed)
    return c10d()._resolve_process_group(boxed) if isinstance(boxed, str) else boxed


def boxed_work(work: dist.Work) -> torch.ScriptObject:
    """A `Work` as the dispatcher hands it from a Python kernel to C++ callers."""
    return work.boxed()


@contextmanager
def below_autograd() -> Iterator[None]:
    """Tensors change as a communication library changes them: unseen by autograd, version counters untouched."""
    import torch

    versions = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(versions):
        yield


def outside_modes() -> AbstractContextManager[object]:
    """Context in which no dispatch mode (fake tensors, recorders) sees what happens."""
    from torch.utils._python_dispatch import _disable_current_modes

    context: AbstractContextManager[object] = _disable_current_modes()
    return context


def fake_tensor_class() -> type[FakeTensor]:
    """The class of tensors without data."""
    from torch._subclasses.fake_tensor import FakeTensor

    tensor_class: type[FakeTensor] = FakeTensor
    return tensor_class


def known_value(tensor: torch.Tensor) -> torch.Tensor | None:
    """What a fake tensor is known to hold (`torch.tensor(3)` under fake tensors), as a real tensor; else None."""
    return getattr(tensor, "constant", None) if isinstance(tensor, fake_tensor_class()) else tensor


def set_known_value(tensor: torch.Tensor, value: object) -> None:
    """Let a fake tensor hold a value: `.item()` then answers it, and small arithmetic carries it on."""
    tensor.constant = value
    tensor.fake_mode.fake_tensor_converter.add_constant_storage_mapping(tensor)


def storage_key(tensor: torch.Tensor) -> int:
    """The same for all tensors that share a storage, while it lives."""
    return int(tensor.untyped_storage()._cdata)


@functools.cache
def dispatcher_ops(namespace: str) -> tuple[str, ...]:
    """All ops of a namespace (`c10d`), without overloads: one that has no answer is then refused, not forgotten."""
    import torch

    names = torch._C._dispatch_get_all_op_names()
    return tuple(sorted({name.split("::")[1].split(".")[0] for name in names if name.startswith(f"{namespace}::")}))


def kernel_library(namespace: str) -> torch.library.Library:
    """A library of kernels that replace torch's own; `destroy_library` brings those back."""
    import torch

    return torch.library.Library(namespace, "IMPL")


def destroy_library(library: torch.library.Library) -> None:
    """Take our kernels out again. Waiting for the garbage collector would leave them in for an unknown time."""
    library._destroy()


class _Chunks:
    """`torch.chunk`, padded with empty tensors to `count`, each made when it is looked up."""

    def __init__(self, tensor: torch.Tensor, count: int, dim: int) -> None:
        self._tensor, self._count, self._dim = tensor, count, dim

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> object:
        size = self._tensor.size(self._dim)
        each = -(-size // self._count)
        start = range(self._count)[number] * each
        if start >= size:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(each, size - start))


def shard_lazily(patches: Replacements) -> None:
    """FSDP2 cuts each parameter into one tensor per rank and keeps one: 8,192 fake tensors each would take minutes."""
    import torch.distributed.fsdp._fully_shard._fsdp_param as fsdp_param

    original = fsdp_param._chunk_with_empty

    def chunk_with_empty(tensor: torch.Tensor, num_chunks: int, dim: int) -> object:
        return _Chunks(tensor, num_chunks, dim) if tensor.size(dim) else original(tensor, num_chunks, dim)

    patches.set(fsdp_param, "_chunk_with_empty", chunk_with_empty)


# Context managers

_MESH_METHODS = (  # those that make or read a tensor; what else a mesh is asked, DTensor asks it in every op
    *("__init__", "__getitem__", "__repr__", "_flatten", "_unflatten", "_create_sub_mesh", "_get_all_submeshes"),
    *("_compute_coordinate_on_dim", "_create_flatten_mesh", "_create_unflatten_mesh"),
)
_MESH_FUNCTIONS = ("_concatenate", "_get_mesh_tensor_from_full_mesh", "from_group", "_compute_coordinates_from_mesh")


@contextmanager
def real_device_meshes(value_of: Callable[[object], object] = known_value) -> Iterator[None]:
    """`DeviceMesh` does small integer arithmetic and reads it back, at construction and look-up: outside all modes.

    A mesh that the script laid out itself, under fake tensors, is looked up with `value_of` (`World.known_value`).
    """
    import torch.distributed as dist
    from torch.distributed import device_mesh

    mesh = device_mesh.DeviceMesh
    with Replacements() as patches:
        for name in _MESH_METHODS:
            method = vars(mesh).get(name)
            if callable(method):
                patches.set(mesh, name, outside(method))
        for name in _MESH_FUNCTIONS:
            function = vars(mesh).get(name)
            if isinstance(function, staticmethod):
                patches.set(mesh, name, staticmethod(outside(function.__func__)))
        patches.set(mesh, "mesh", property(outside(vars(mesh)["mesh"].fget)))
        patches.set(mesh, "__init__", _with_real_ranks(mesh.__init__, value_of))
        init = outside(device_mesh.init_device_mesh)
        patches.set(device_mesh, "init_device_mesh", init)
        patches.set(dist, "init_device_mesh", init)
        yield


def _with_real_ranks(make: Callable[..., object], value_of: Callable[[object], object]) -> Callable[..., object]:
    @functools.wraps(make)
    def init(mesh: DeviceMesh, device_type: str, *args: object, **kwargs: object) -> object:
        import torch

        def real(ranks: object, what: str) -> object:
            if not isinstance(ranks, fake_tensor_class()):
                return ranks
            value = value_of(ranks)
            if value is None and what == "_rank_map":  # init_device_mesh counts ranks, under whatever mode there was
                with outside_modes():
                    value = torch.arange(ranks.numel(), dtype=torch.int)
            if value is None:
                raise UnsupportedCommunicationError(
                    "a DeviceMesh from a tensor whose ranks are not known",
                    "lay it out as a list, or with init_device_mesh",
                )
            return value

        args = tuple(real(ranks, "mesh") for ranks in args)
        return make(mesh, device_type, *args, **{name: real(ranks, name) for name, ranks in kwargs.items()})

    return init


def ddp_outside_modes() -> Replacements:
    """`DistributedDataParallel`'s C++ reads raw integers twice, where a tensor without data has none.

    The check of parameter shapes at start-up compares them among ranks: peers run the same script, so it is left out.
    The rebuild of the buckets in the second iteration lays them out anew: it runs outside the modes, on real tensors.
    """
    import torch.distributed as dist
    import torch.nn.parallel.distributed as ddp

    return Replacements(
        (dist, "_verify_params_across_processes", lambda *_, **__: None),
        (ddp, "_verify_param_shape_across_processes", lambda *_, **__: None),
        (dist.Reducer, "_rebuild_buckets", outside(dist.Reducer._rebuild_buckets)),
    )


def outside(function: Callable[..., object]) -> Callable[..., object]:
    """A function that no dispatch mode sees."""
    return in_context(outside_modes, function)
