"""Laws of a virtual world: set-up at any size, groups, and that it leaves nothing behind."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch")
dist = torch.distributed

from worlds import Clock, Hands, hands, nothing_left, opened  # noqa: E402, F401

from windtunnel.real.capture.torch_private import distributed as compat  # noqa: E402
from windtunnel.real.capture.virtual_world.refusals import (  # noqa: E402
    UnsupportedCommunicationError,
    UntriedTorchError,
    WorldError,
)
from windtunnel.real.capture.virtual_world.world import World  # noqa: E402


@pytest.mark.parametrize(
    "arguments",
    [
        {"backend": "nccl", "init_method": "tcp://10.1.2.3:99", "rank": 5, "world_size": 16384},
        {"backend": "gloo", "init_method": "file:///nowhere/at/all", "rank": 5, "world_size": 16384},
        {"backend": "nccl", "device_id": 5, "timeout": timedelta(seconds=3)},
        {"backend": "cpu:gloo,cuda:nccl", "device_id": "cuda:5"},
        {"backend": "mpi"},
        {"init_method": "env://"},
        {"backend": "gloo", "init_method": "tcp://10.1.2.3:99?rank=5&world_size=16384"},
    ],
    ids=lambda arguments: "-".join(map(str, arguments.values())),
)
@pytest.mark.filterwarnings("ignore")
def test_every_way_to_initialise_gives_the_same_world(arguments: dict[str, Any]) -> None:
    if isinstance(arguments.get("device_id"), str):
        arguments = {**arguments, "device_id": torch.device(arguments["device_id"])}
    with World(5, 16384):
        for _ in range(2):  # and again after it was destroyed
            dist.init_process_group(**arguments)
            assert (dist.get_rank(), dist.get_world_size()) == (5, 16384)
            assert dist.get_backend() == arguments.get("backend", "undefined")
            if "device_id" in arguments:
                assert dist.group.WORLD.bound_device_id == torch.device("cuda:5")
            dist.all_reduce(x := torch.ones(2))
            assert x.tolist() == [16384, 16384]
            dist.barrier()
            dist.destroy_process_group()
            assert not dist.is_initialized()


def test_a_store_of_the_script_s_own_is_taken() -> None:
    with World(3, 64):
        store = dist.TCPStore("10.1.2.3", 99, 64, False)
        dist.init_process_group("gloo", store=store, rank=3, world_size=64)
        store.set("mine", "1")
        assert store.get("mine") == b"1"
        assert store.add("count", 2) == 2
        assert (dist.PrefixStore("a", store).num_keys(), store.num_keys()) == (2, 2)
        assert store.delete_key("count")
        with pytest.raises(UnsupportedCommunicationError, match="'theirs'"):
            store.get("theirs")


@pytest.mark.parametrize("wrong", [{"rank": 2, "world_size": 8}, {"rank": 3, "world_size": 9}])
def test_another_rank_or_size_than_the_process_s_is_refused(wrong: dict[str, int]) -> None:
    with World(3, 8), pytest.raises(WorldError, match="rank 3 of 8"):
        dist.init_process_group("gloo", init_method="tcp://10.1.2.3:99", **wrong)


def test_a_rank_outside_the_world_is_refused() -> None:
    with pytest.raises(WorldError, match="0 to 7"):
        World(8, 8)


def test_groups_of_8192_ranks_take_no_time() -> None:
    begun = time.thread_time()
    with World(4097, 8192) as world:
        dist.init_process_group("nccl")
        mesh = dist.init_device_mesh("cpu", (16, 64, 8), mesh_dim_names=("pp", "dp", "tp"))
        tensor = [dist.new_group(list(range(first, first + 8))) for first in range(0, 8192, 8)]
        pipeline = [dist.new_group(list(range(first, 8192, 512))) for first in range(512)]
        data = [dist.new_group(list(range(512 * s + t, 512 * s + 512, 8))) for s in range(16) for t in range(8)]
        seconds = time.thread_time() - begun
        assert [
            sum(group is not dist.GroupMember.NON_GROUP_MEMBER for group in groups)
            for groups in (tensor, pipeline, data)
        ] == [1, 1, 1]
        assert mesh.get_coordinate() == [8, 0, 1] or tuple(mesh.get_coordinate()) == (8, 0, 1)
        assert mesh["dp"].get_group().size() == 64
        assert mesh["pp", "dp"]._flatten("ranks").size() == 1024
        assert mesh["tp"].get_local_rank() == dist.get_rank(mesh["tp"].get_group()) == 1
        assert world.meshes == [(("pp", "dp", "tp"), (16, 64, 8))]
        assert world.coordinates == [(8, 0, 1)]
        part = mesh["dp"]
        assert {one().mesh_dim_names for one in world.held_meshes if one()} >= {("pp", "dp", "tp"), ("dp",)}
        del part
        assert dist.get_process_group_ranks(mesh["tp"].get_group()) == list(range(4096, 4104))
    assert seconds < 5


def test_subgroups_and_splits() -> None:
    with opened(5, 16, "nccl"):
        mine, all_of_them = dist.new_subgroups(4)
        assert (dist.get_rank(mine), len(all_of_them)) == (1, 4)
        mine, _ = dist.new_subgroups_by_enumeration([[0, 5], [1, 2]])
        assert dist.get_process_group_ranks(mine) == [0, 5]
        split = dist.split_group(split_ranks=[[0, 1, 2], [8, 5]])
        assert dist.get_process_group_ranks(split) == [5, 8]
        assert dist.get_backend(split) == "nccl"
        dist.all_reduce(x := torch.ones(1), group=split)
        assert x.item() == 2
        again = dist.split_group(split, [[0]])
        assert dist.get_process_group_ranks(again) == [5]
        assert dist.split_group(split_ranks=[[0, 1]]) is None
        assert dist.new_group([0, 1]) is dist.GroupMember.NON_GROUP_MEMBER
        dist.destroy_process_group(split)
        assert dist.new_group([5, 3], backend="gloo").name() == "gloo"


def test_options_of_nccl_can_be_made_and_passed() -> None:
    with World(0, 8):
        assert dist.is_nccl_available()
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        options.config.cga_cluster_size = 2
        dist.init_process_group("nccl", pg_options=options)
        assert dist.new_group([0, 1], pg_options=options).size() == 2
    with World(0, 8, devices=("cpu",)):
        assert dist.is_nccl_available() == hasattr(torch._C._distributed_c10d, "ProcessGroupNCCL")


def test_a_world_inside_an_initialised_process_is_refused() -> None:
    with opened(), pytest.raises(WorldError, match="already"), World(0, 2):
        pass


def test_what_was_imported_inside_works_outside_as_it_did() -> None:
    with opened():
        from torch.distributed import all_gather_object, split_group
    with pytest.raises(ValueError, match="not been initialized"):
        all_gather_object([None], 1)
    with pytest.raises(ValueError, match="not been initialized"):
        split_group(split_ranks=[[0]])


def test_real_kernels_are_back_after_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch's own initialisation leaves its own
    for _ in range(3):
        with opened(0, 3):
            dist.all_reduce(x := torch.ones(1))
            assert x.item() == 3
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=3, store=FakeStore())
    dist.all_reduce(x := torch.ones(1))
    dist.destroy_process_group()
    assert x.item() == 1


def test_a_newer_torch_is_tried_and_an_old_one_refused_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(compat.ANY_TORCH, raising=False)
    for newer in ("9.9.1", "2.16.0a0+git12"):
        monkeypatch.setattr(torch, "__version__", newer)
        with pytest.warns(UserWarning, match=r"checked on 2\.12"):
            compat.require_tried_torch()
    monkeypatch.setattr(torch, "__version__", "2.11.0")
    with pytest.raises(UntriedTorchError, match=r"2\.11\.0.*2\.13"):
        compat.require_tried_torch()
    monkeypatch.setenv(compat.ANY_TORCH, "1")
    with pytest.warns(UserWarning, match="2.13"):
        compat.require_tried_torch()
