"""Checkpoints of tensors that hold no data: saved as a short note of what was saved, and loaded by it.

`torch.save` writes a marker; `torch.load` of a marker gives what was saved, its tensors copied, so a script that saves
and resumes does as it would. Behind rank 0's stand the shapes, for other ranks. `torch.distributed.checkpoint` writes
and reads many files from all ranks: there a save leaves a marker in its folder, and a load leaves the state as it is.
safetensors' files are as `torch.save`'s.
"""

from __future__ import annotations

import importlib
import io
import itertools
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from windtunnel.real.capture.replacements import Replacements

if TYPE_CHECKING:
    import os

    import torch
    import torch.distributed as dist
    from torch.types import FileLike

MARKER = b"windtunnel: saved during a capture, number "
NOTE = "checkpoints are not written: what the script saves is kept in memory, and gone with the capture"


@contextmanager
def checkpoints_kept(
    note: Callable[[str], None],
    *,
    is_shared: bool = False,
    together: Callable[[str, dist.ProcessGroup | None], None] | None = None,
) -> Iterator[None]:
    """While this holds, `torch.save`, `torch.load` and `torch.distributed.checkpoint` touch no tensor's data.

    `note`: takes one line for the user, at the first save. `is_shared`: other ranks load what this one saves; they find
    tensors of the same shapes. `together`: takes what all ranks of a process group (None: all) must call,
    and the group.
    """
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.utils._pytree import tree_map_only

    from windtunnel.real.capture.torch_private import distributed as compat
    from windtunnel.real.capture.virtual_world import objects

    saved: dict[bytes, object] = {}
    numbers = itertools.count()
    replaced = Replacements()
    write, load = torch.save, torch.load

    def copied(thing: object) -> object:
        return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), thing)

    def save(obj: object, f: FileLike, *more: object, **keywords: object) -> None:
        storage = obj if isinstance(obj, torch.TypedStorage | torch.UntypedStorage) else None
        if storage is not None and storage.device.type != "meta" and hasattr(f, "write"):
            with suppress(RuntimeError):  # of one without data, which is kept as all else is
                data = io.BytesIO()
                write(obj, data, *more, **keywords)  # a tensor that holds data is being pickled
                f.write(data.getvalue())
                return
        number = b"%d.%d" % (os.getpid(), next(numbers))
        with compat.outside_modes():  # a real one takes no memory of the device's
            saved[number] = copied(obj)
        note(NOTE)
        marker = MARKER + number + b"\n"
        if is_shared:
            # What is of no module, or a storage without data, no other rank could load.
            with suppress(pickle.PicklingError, AttributeError, TypeError, RuntimeError):
                marker += objects.dumps(obj)
        if hasattr(f, "write"):
            f.write(marker)
        else:
            with io.open(os.fspath(f), "wb") as file:  # noqa: UP020 - through what stands in for it while capturing
                file.write(marker)

    def loaded(f: FileLike, *more: object, **keywords: object) -> object:
        with nullcontext(f) if hasattr(f, "read") else io.open(os.fspath(f), "rb") as file:  # noqa: UP020
            at = file.tell()
            begin = file.read(len(MARKER))
            number, _, rest = file.read().partition(b"\n") if begin == MARKER else (b"", b"", b"")
            file.seek(at)
        if number in saved:
            return copied(saved[number])
        if rest:
            return objects.loads(rest)
        return load(f, *more, **keywords)

    def call_together(kind: str, more: Mapping[str, object]) -> None:
        if together is not None and not more.get("no_dist"):
            together(f"checkpoint.{kind}", more.get("process_group"))

    def save_all(*_: object, checkpoint_id: object = None, storage_writer: object = None, **more: object) -> None:
        note(NOTE)
        call_together("save", more)
        folder = getattr(storage_writer, "path", None) if checkpoint_id is None else checkpoint_id
        if isinstance(folder, str | os.PathLike):
            os.makedirs(folder, exist_ok=True)
            with io.open(os.path.join(folder, ".metadata"), "wb") as file:  # noqa: UP020
                file.write(MARKER)

    def save_soon(*_: object, **more: object) -> Future[None]:
        save_all(**more)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def load_all(*_: object, **more: object) -> None:
        call_together("load", more)
        note("checkpoints are not read: the state stays as it was made")

    def save_state(
        state_dict: object, storage_writer: object, process_group: object = None, *_: object, **more: object
    ) -> None:
        save_all(storage_writer=storage_writer, process_group=process_group, **more)

    def load_state(
        state_dict: object, storage_reader: object, process_group: object = None, *_: object, **more: object
    ) -> None:
        load_all(process_group=process_group, **more)

    def save_file(tensors: Sequence[torch.Tensor], filename: object, metadata: object = None) -> None:
        save(dict(tensors), filename)

    def save_model(model: torch.nn.Module, filename: object, *_: object, **__: object) -> None:
        save(dict(model.state_dict()), filename)

    def load_file(filename: str | os.PathLike[str], device: torch.device = "cpu") -> object:
        with io.open(os.fspath(filename), "rb") as file:  # noqa: UP020
            ours = file.read(len(MARKER)) == MARKER
        return loaded(filename) if ours else load_tensors(filename, device)

    with suppress(ImportError):  # writes from Rust, where nobody stands in
        safetensors = importlib.import_module("safetensors.torch")
        load_tensors = safetensors.load_file
        for name, new in (("save_file", save_file), ("save_model", save_model), ("load_file", load_file)):
            replaced.set(safetensors, name, new)
    for module in (torch, torch.serialization):
        replaced.set(module, "save", save)
        replaced.set(module, "load", loaded)
    for module in (dcp, sys.modules[dcp.save.__module__], sys.modules[dcp.load.__module__]):
        for name, replacement in (
            *(("save", save_all), ("async_save", save_soon), ("load", load_all)),
            *(("save_state_dict", save_state), ("load_state_dict", load_state)),
        ):
            if hasattr(module, name):
                replaced.set(module, name, replacement)
    with replaced:
        yield
