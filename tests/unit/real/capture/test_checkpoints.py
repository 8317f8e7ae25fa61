"""Checkpoints during a capture: what scripts look for afterwards is there."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed.checkpoint as dcp

from windtunnel.real.capture.fake_tensors.checkpoints import checkpoints_kept

pytestmark = pytest.mark.extras


@pytest.mark.parametrize("name", ["save", "async_save"])
@pytest.mark.parametrize("by_writer", [False, True])
def test_a_distributed_checkpoint_leaves_its_folder_wherever_it_is_named(
    tmp_path: Path, name: str, by_writer: bool
) -> None:
    folder, notes = tmp_path / "saved" / "model", list[str]()
    place = {"storage_writer": dcp.FileSystemWriter(folder)} if by_writer else {"checkpoint_id": folder}
    with checkpoints_kept(notes.append):
        future = getattr(dcp, name)({"weight": torch.ones(2, device="meta")}, **place)
    assert (folder / ".metadata").is_file()
    assert notes
    if name == "async_save":
        assert future.done()
