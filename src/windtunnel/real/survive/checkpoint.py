"""Checkpoints in two stages on `torch.distributed.checkpoint`: a copy that blocks, and a write behind it.

    stage 1   training waits while its state is copied to host memory
    stage 2   a thread writes it into `step-N.partial`, then a manifest with the size and checksum of every file,
              syncs all
              to disk, and renames the folder to `step-N`

A folder has its final name only when it is whole, so a process that is killed at any byte leaves the last checkpoint
as it was. One write is under way at a time; `save` waits for the one before. Each rank writes its own shards through a
group of its own (gloo), so that the thread's collectives do not meet the training's. Loading is torch's own: tensors
that are sharded as DTensors go to any other layout.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.errors import InputFileError, UserError

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

MANIFEST = "manifest.json"
PARTIAL = ".partial"
CHUNK = 1 << 20


class CheckpointError(UserError):
    """A checkpoint that could not be written."""


@dataclass
class Checkpoints:
    """The checkpoints of one job in one folder. Every rank of a group makes one, with the same folder."""

    folder: Path
    keep: int = 2
    group: dist.ProcessGroup | None = (
        None  # a gloo group of all ranks, for nothing else; None where one process saves alone
    )
    _writer: threading.Thread | None = field(default=None, repr=False)
    _failed: BaseException | None = field(default=None, repr=False)

    def save(
        self,
        step: int,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        others: Mapping[str, object] | None = None,
    ) -> None:
        """Copy the state, and write it in the background. `others`: tensors and plain values.

        Raises CheckpointError if the write before this one failed.
        """
        self.wait()
        state = _copied(_state(model, optimizer, others or {}))
        self._writer = threading.Thread(target=self._write, args=(step, state), name=f"checkpoint {step}")
        self._writer.start()

    def wait(self) -> None:
        """Until the write under way is on disk. Raises CheckpointError if it failed."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        failed, self._failed = self._failed, None
        if failed is not None:
            reason = getattr(failed, "strerror", None) or " ".join(str(failed).split())[:200]
            raise CheckpointError(
                f"{self.folder}: a checkpoint could not be written ({reason}); the last complete one is"
                f" {self.latest() if self.latest() is not None else 'none'}; make room or give another folder"
            ) from failed

    def latest(self) -> int | None:
        """Step of the newest complete checkpoint."""
        steps = self._steps()
        return steps[-1] if steps else None

    def restore(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, others: dict[str, Any] | None = None, *,
        step: int | None = None, reshard: bool = False,
    ) -> int | None:  # fmt: skip
        """Load the newest complete checkpoint, or that of `step`, in place; returns its step, None where there is none.

        Every file is held against the manifest first. `reshard`: take a checkpoint of another number of ranks. Raises
        InputFileError for a missing step, a damaged file or another number of ranks.
        """
        from torch.distributed.checkpoint import CheckpointException, FileSystemReader, load
        from torch.distributed.checkpoint.state_dict import set_state_dict

        self.wait()
        chosen = self.latest() if step is None else step
        if chosen is None:
            return None
        path = self._path(chosen)
        manifest = self._checked(path)
        if manifest["world_size"] != self._world() and not reshard:
            problem = f"was written by {manifest['world_size']} ranks, and this job has {self._world()}"
            raise InputFileError(path, problem, "start as many ranks, or restore with reshard=True")
        others = {} if others is None else others
        # torch makes an optimizer's empty state only where there are no gradients, and would read no moments otherwise.
        optimizer.zero_grad(set_to_none=True)
        state = _state(model, optimizer, others)
        try:
            load(state, storage_reader=FileSystemReader(path), process_group=self.group, no_dist=self.group is None)
        except (CheckpointException, RuntimeError, ValueError, KeyError) as error:
            problem = f"does not fit this model and optimizer ({' '.join(str(error).split())[-160:]})"
            raise InputFileError(path, problem, "restore into the model that was saved") from error
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        others.update(state.get("others", {}))
        return chosen

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}"

    def _steps(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        names = [path.name.removeprefix("step-") for path in self.folder.glob("step-*") if path.suffix != PARTIAL]
        return sorted(int(name) for name in names if name.isdigit())

    def _world(self) -> int:
        return 1 if self.group is None else int(self.group.size())

    def _rank(self) -> int:
        return 0 if self.group is None else int(self.group.rank())

    def _write(self, step: int, state: dict[str, object]) -> None:
        from torch.distributed.checkpoint import FileSystemWriter, save

        path = self._path(step)
        partial = path.with_name(path.name + PARTIAL)

        def prepare() -> None:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)

        try:
            self._on_rank_0(prepare)
            writer = FileSystemWriter(partial, sync_files=True, overwrite=True)
            save(state, storage_writer=writer, process_group=self.group, no_dist=self.group is None)
            self._on_rank_0(lambda: self._complete(partial, path))
        except BaseException as error:
            self._failed = _cause(error)
            if self._rank() == 0:
                shutil.rmtree(partial, ignore_errors=True)

    def _on_rank_0(self, action: Callable[[], None]) -> None:
        """One rank does it and all wait for it. Where it fails it fails on all, or the others would wait for ever."""
        import torch

        failed: BaseException | None = None
        if self._rank() == 0:
            try:
                action()
            except BaseException as error:
                failed = error
        flag = torch.tensor([float(failed is not None)])
        if self.group is not None:
            self.group.allreduce([flag]).wait()
        if failed is not None:
            raise failed
        if flag.item():
            raise RuntimeError("rank 0 failed, and says why")

    def _complete(self, partial: Path, path: Path) -> None:
        """Manifest, sync, rename; then what is too old goes."""
        files = {
            entry.name: {"bytes": entry.stat().st_size, "crc32": _crc(entry)} for entry in sorted(partial.iterdir())
        }
        manifest = partial / MANIFEST
        with manifest.open("w") as file:
            json.dump({"world_size": self._world(), "files": files}, file)
            file.flush()
            os.fsync(file.fileno())
        _sync(partial)
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)
        _sync(self.folder)
        for old in self._steps()[: -self.keep]:
            shutil.rmtree(self._path(old), ignore_errors=True)

    def _checked(self, path: Path) -> dict[str, object]:
        remedy = "restore an earlier step"
        try:
            manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text())
        except OSError:
            steps = ", ".join(map(str, self._steps())) or "none"
            raise InputFileError(path, "is no complete checkpoint", f"complete ones: {steps}") from None
        except ValueError:
            raise InputFileError(path / MANIFEST, "is damaged", remedy) from None
        for name, entry in manifest["files"].items():
            file = path / name
            size = file.stat().st_size if file.exists() else -1
            if size != entry["bytes"]:
                problem = "is missing" if size < 0 else f"has {size:,} bytes instead of {entry['bytes']:,}"
                raise InputFileError(file, problem, remedy)
            if _crc(file) != entry["crc32"]:
                raise InputFileError(file, "does not hold what was written (checksum)", remedy)
        return manifest


def _state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, others: Mapping[str, object]) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer, **({"others": dict(others)} if others else {})}


def _copied(value: object) -> object:
    """Stage 1: the same structure with tensors of its own in host memory."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(inner) for inner in value)
    return value


def _cause(error: BaseException) -> BaseException:
    """The system's own error, where torch wraps it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return cause
        wrapped = getattr(cause, "failures", None)  # torch's CheckpointException: rank -> (error, traceback)
        if wrapped:
            first = next(iter(wrapped.values()))
            cause = first[0] if isinstance(first, tuple) else first
            continue
        cause = cause.__cause__ or cause.__context__
    return error


def _crc(path: Path) -> int:
    total = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            total = zlib.crc32(chunk, total)
    return total


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
