"""Checkpoints during a capture: what scripts look for afterwards is there."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed.checkpoint as dcp

from windtunnel.real.capture.fake_tensors.checkpoints import checkpoints_kept
from windtunnel.real.capture.fake_tensors.fake import fake_tensors

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


def test_the_older_names_leave_a_marker_too_and_call_what_all_ranks_call(tmp_path: Path) -> None:
    state, calls = {"weight": torch.ones(2, device="meta")}, list[tuple[str, object]]()
    with checkpoints_kept(list[str]().append, together=lambda kind, group: calls.append((kind, group))):
        dcp.save_state_dict(state, dcp.FileSystemWriter(tmp_path / "saved"), None)
        dcp.load_state_dict(state_dict=state, storage_reader=dcp.FileSystemReader(tmp_path / "saved"))
    assert (tmp_path / "saved" / ".metadata").is_file()
    assert calls == [("checkpoint.save", None), ("checkpoint.load", None)]


def test_another_rank_loads_the_shapes_of_what_rank_0_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = {"weight": torch.ones(2, 3, device="meta"), "step": 4, "parts": [torch.arange(5)]}
    notes = list[str]()
    with checkpoints_kept(notes.append, is_shared=True):
        torch.save(saved, tmp_path / "first.pt")
        torch.save({"step": 5}, tmp_path / "second.pt")
        with (tmp_path / "first.pt").open("rb") as file:
            assert torch.load(file).keys() == torch.load(tmp_path / "first.pt").keys()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with checkpoints_kept(notes.append):  # another rank
        torch.save({"step": 6}, tmp_path / "own.pt")
        loaded = torch.load(tmp_path / "first.pt")
        assert [torch.load(tmp_path / name)["step"] for name in ("second.pt", "own.pt")] == [5, 6]
    assert (loaded["step"], loaded["weight"].shape, loaded["parts"][0].tolist()) == (4, (2, 3), [0, 1, 2, 3, 4])


def test_a_storage_without_data_comes_back(tmp_path: Path) -> None:
    with fake_tensors("cpu"), checkpoints_kept(lambda _: None, is_shared=True):
        storage = torch.ones(3).untyped_storage()
        torch.save({"storage": storage}, tmp_path / "one.pt")
        torch.save(storage, buffer := io.BytesIO())
        buffer.seek(0)
        assert torch.load(buffer) is torch.load(tmp_path / "one.pt")["storage"] is storage
