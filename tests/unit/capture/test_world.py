"""Laws of a virtual world: set-up at any size, what calls say, timing, messages, and that it leaves nothing behind."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch")
dist = torch.distributed

from mailboxes import LocalMailbox, connect_mailbox, serve_mailbox  # noqa: E402

from windtunnel.capture.torch_private import distributed as compat  # noqa: E402
from windtunnel.capture.virtual_world import work as virtual_work  # noqa: E402
from windtunnel.capture.virtual_world.peer_data import Exchange, PeerPolicy, like_me, noise, permute_own, recorded  # noqa: E402
from windtunnel.capture.virtual_world.refusals import (  # noqa: E402
    NoPeerError,
    UnsupportedCommunicationError,
    UntriedTorchError,
    WorldError,
)
from windtunnel.capture.virtual_world.world import World  # noqa: E402
from windtunnel.errors import UserError  # noqa: E402
from windtunnel.programs.communication import Communication  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = (dist.init_process_group, dist.all_gather_object, dist.ProcessGroup.barrier, sys.excepthook, dist.TCPStore)
    threads = set(threading.enumerate())
    yield
    after = (dist.init_process_group, dist.all_gather_object, dist.ProcessGroup.barrier, sys.excepthook, dist.TCPStore)
    assert before == after
    assert not dist.is_initialized()
    assert set(threading.enumerate()) <= threads


class Hands:
    """Time that goes on while somebody sleeps, and by a microsecond when somebody looks: however busy the machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    monkeypatch.setattr(virtual_work, "time", made := Hands())
    return made


class Clock:
    """A listener that lets everything take `seconds`, and remembers."""

    def __init__(self, seconds: float | None = None, hands: Any = time) -> None:
        self.seconds, self.hands = seconds, hands
        self.begun, self.waits = list[Communication](), list[Communication]()

    def begin(self, call: Communication) -> float | None:
        self.begun.append(call)
        return None if self.seconds is None else self.hands.perf_counter() + self.seconds

    def waited(self, call: Communication) -> None:
        self.waits.append(call)


@contextmanager
def opened(rank: int = 1, size: int = 4, backend: str | None = "gloo", **more: Any) -> Iterator[World]:
    with World(rank, size, **more) as world:
        dist.init_process_group(backend)
        yield world


# ---- set-up


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


def test_another_torch_is_refused_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "9.9.1")
    monkeypatch.delenv(compat.ANY_TORCH, raising=False)
    with pytest.raises(UntriedTorchError, match=r"9\.9\.1.*2\.13"):
        compat.require_tried_torch()
    monkeypatch.setenv(compat.ANY_TORCH, "1")
    with pytest.warns(UserWarning, match="2.13"):
        compat.require_tried_torch()


# ---- what calls say


def test_calls_say_what_is_asked() -> None:
    with opened(1, 4) as world:
        world.calls = []
        group = dist.new_group([1, 3])
        dist.all_reduce(torch.ones(3, dtype=torch.bfloat16), op=dist.ReduceOp.AVG, async_op=True)
        dist.all_gather_into_tensor(torch.empty(8), torch.empty(4), group=group)
        dist.reduce_scatter_tensor(torch.empty(2), torch.empty(8))
        dist.broadcast(torch.ones(2), src=3, group=group)
        dist.all_to_all_single(torch.empty(4, 2), torch.ones(10, 2), [1, 1, 1, 1], [1, 2, 3, 4])
        dist.all_to_all([torch.empty(2)] * 4, [torch.empty(3)] * 4)
        dist.gather(torch.ones(2), dst=0)
        dist.isend(torch.ones(5), dst=3, tag=7)
        dist.isend(torch.ones(5), dst=3)
        dist.irecv(torch.ones(5), src=2)
        dist.all_reduce(torch.ones(3, dtype=torch.int64))
        dist.barrier(group)
        got = world.calls
    assert [(c.kind, c.bytes, c.peer) for c in got] == [
        ("all_reduce", 6, -1),
        ("all_gather", 32, -1),
        ("reduce_scatter", 32, -1),
        ("broadcast", 8, 3),
        ("all_to_all", 80, -1),
        ("all_to_all", 48, -1),
        ("gather", 32, 0),
        ("send", 20, 3),
        ("send", 20, 3),
        ("recv", 20, 2),
        ("all_reduce", 24, -1),
        ("barrier", 0, -1),
    ]
    assert got[0].reduce_op == "avg"
    assert got[0].dtype == "bfloat16"
    assert got[0].is_async
    assert not got[1].is_async
    assert (got[1].members, got[1].position) == ((1, 3), 0)
    assert got[1].members is got[3].members is got[11].members
    assert (got[4].sent_bytes, got[4].received_bytes) == ((8, 16, 24, 32), (8, 8, 8, 8))
    assert (got[5].sent_bytes, got[5].received_bytes) == ((12,) * 4, (8,) * 4)
    assert [c.sequence for c in got if c.members == (1, 3)] == [0, 1, 2]
    assert [c.sequence for c in got if c.kind == "send"] == [0, 1]
    assert got[7].tag == 7
    assert [c.is_control for c in got] == [False] * 10 + [True, False]


def test_members_cost_nothing_per_call() -> None:
    with opened(5, 16384) as world:
        world.calls = []
        x = torch.ones(4)
        begun = time.thread_time()
        for _ in range(300):
            dist.all_reduce(x, op=dist.ReduceOp.MAX)
        each = (time.thread_time() - begun) / 300
        assert len({id(call.members) for call in world.calls}) == 1
    assert each < 1e-3


def test_reductions_that_gloo_lacks() -> None:
    with opened(1, 4):
        dist.all_reduce(x := torch.full((2,), 3.0), op=dist.ReduceOp.AVG)
        assert x.tolist() == [3, 3]
        dist.all_reduce(x := torch.full((2,), 3.0), op=dist.ReduceOp.PREMUL_SUM(0.5))
        assert x.tolist() == [6, 6]
        dist.reduce_scatter_tensor(y := torch.empty(1), torch.arange(4.0), op=dist.ReduceOp.PREMUL_SUM(0.25))
        assert y.tolist() == [1]
        dist.all_reduce(z := torch.tensor([True, False]))
        assert z.tolist() == [True, False]
        dist.all_reduce(q := torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn).view(torch.float8_e4m3fn))
        assert q.float().tolist() == [4, 8]


def test_leaves_and_views_change_unseen_by_autograd() -> None:
    with opened(0, 2):
        leaf = torch.ones(4, requires_grad=True)
        version = leaf._version
        dist.all_reduce(leaf)
        dist.all_gather_into_tensor(torch.empty(8), leaf)
        whole = torch.zeros(4)
        dist.all_gather(list(whole.chunk(2)), leaf[:2])  # multi-output views
        assert leaf.tolist() == [2] * 4
        assert leaf._version == version
        assert whole.tolist() == [2] * 4


def test_an_op_without_an_answer_is_refused_by_name() -> None:
    with opened(0, 2) as world:
        assert set(compat.dispatcher_ops("c10d")) <= {*world._kernels, "check_for_nan"}
        with pytest.raises(UnsupportedCommunicationError, match="shrink_group"):
            dist.shrink_group([1])
        assert issubclass(UnsupportedCommunicationError, UserError)


# ---- time


def test_a_wait_takes_what_the_listener_says(hands: Hands) -> None:
    clock = Clock(0.05, hands)
    with opened(0, 2, listener=clock):
        for _ in range(7):
            begun = hands.now
            dist.all_reduce(torch.ones(2))
            assert 0.05 <= hands.now - begun < 0.0501
        begun = hands.now
        work = dist.all_reduce(torch.ones(2), async_op=True)
        assert not work.is_completed()
        assert hands.now - begun < 1e-4
        hands.sleep(0.06)
        assert work.is_completed()
        begun = hands.now
        work.wait()
        assert hands.now - begun < 1e-4
    assert len(clock.begun) == len(clock.waits) == 8
    assert all(one is other for one, other in zip(clock.begun, clock.waits, strict=True))


def test_futures_complete_when_due_and_chain() -> None:
    with opened(0, 4, listener=Clock(0.05)):
        x = torch.ones(2)
        begun = time.perf_counter()
        future = dist.all_reduce(x, async_op=True).get_future()
        chained = future.then(lambda done: done.value()[0] * 10)
        assert not future.done()
        assert chained.wait().tolist() == [40, 40]
        assert time.perf_counter() - begun > 0.045
        never = dist.all_reduce(x, async_op=True).get_future()
    assert never.done()  # leaving the world completes what is still due


def test_works_and_futures_hold_no_tensors() -> None:
    with opened(0, 2, listener=Clock(0.01)) as world:
        import weakref

        def issue() -> Any:
            x = torch.ones(1000)
            work = dist.all_reduce(x, async_op=True)
            return weakref.ref(x), work

        held, work = issue()
        gc.collect()
        assert held() is None
        work.wait()
        y = torch.ones(1000)
        gone = weakref.ref(y)
        dist.all_reduce(y, async_op=True).get_future().wait()
        del y
        time.sleep(0.01)
        gc.collect()
        assert gone() is None
        assert len(world.works._kept) == 0


def test_a_batch_is_one_call_among_many_for_nccl_and_several_for_gloo(hands: Hands) -> None:
    for backend, count in (("nccl", 1), ("gloo", 4)):
        clock = Clock(0.02, hands)
        with opened(1, 4, backend, listener=clock):
            ops = [dist.P2POp(dist.isend, torch.ones(3), peer) for peer in (0, 2)]
            ops += [dist.P2POp(dist.irecv, torch.ones(3), peer) for peer in (0, 2)]
            begun = hands.now
            works = dist.batch_isend_irecv(ops)
            assert len(works) == count
            for work in works:
                work.wait()
            assert 0.02 <= hands.now - begun < 0.0201  # side by side
        assert [call.kind for call in clock.waits] == ["send", "send", "recv", "recv"]
        assert {call.batch for call in clock.begun} == ({1} if backend == "nccl" else {0})


def test_a_coalescing_manager_waits_for_all() -> None:
    clock = Clock(0.02)
    with opened(1, 4, "nccl", listener=clock):
        x, y = torch.ones(3), torch.ones(2)
        with dist._coalescing_manager(async_ops=True) as manager:
            dist.all_reduce(x)
            dist.all_reduce(y)
        manager.wait()
        assert (x.tolist(), y.tolist()) == ([4] * 3, [4] * 2)
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
            dist.all_gather_into_tensor(torch.empty(12), x)
            dist.all_gather_into_tensor(torch.empty(8), y)
        manager.wait()
        assert len(clock.waits) == 2
        with dist._coalescing_manager():
            dist.reduce_scatter_tensor(out := torch.empty(1), torch.arange(4.0))
        assert out.item() == 4
    assert [call.bytes for call in clock.begun] == [20, 80, 16]


# ---- data


def test_noise_is_small_and_leaves_the_script_s_random_numbers_alone() -> None:
    with opened(1, 4):
        torch.manual_seed(3)
        expected = torch.rand(4)
        torch.manual_seed(3)
        dist.recv(x := torch.empty(1000, dtype=torch.bfloat16), src=0)
        dist.recv(tokens := torch.full((1000,), 77), src=0)
        dist.scatter(part := torch.empty(100), src=0)
        assert 0.01 < x.float().std() < 0.03
        assert tokens.eq(0).all()
        assert part.std() > 0
        assert dist.recv(torch.empty(1000)) == 0
        assert torch.equal(torch.rand(4), expected)


def test_policies() -> None:
    def tape(exchange: Exchange) -> bool:
        if exchange.call.kind == "all_reduce":
            exchange.outputs[0].fill_(42)
        return exchange.call.kind == "all_reduce"

    with opened(1, 4, peers=PeerPolicy(recorded(tape))):
        dist.all_reduce(x := torch.ones(2))
        dist.all_gather_into_tensor(y := torch.empty(8), torch.ones(2))
        assert x.tolist() == [42, 42]
        assert y.tolist() == [1] * 8
    with opened(1, 4, peers=PeerPolicy(like_me, {"all_to_all": permute_own, "all_gather": noise})):
        dist.all_to_all_single(x := torch.empty(4), torch.arange(4.0))
        dist.all_gather_into_tensor(y := torch.empty(8), torch.ones(2))
        assert x.tolist() == [0, 1, 2, 3]
        assert y.abs().max() < 0.5


def test_uneven_all_to_all_tiles_own_rows() -> None:
    with opened(2, 3):
        own = torch.arange(12.0).view(6, 2)
        dist.all_to_all_single(x := torch.empty(5, 2), own, [3, 0, 2], [3, 2, 1])  # one row is for this rank
        assert x.tolist() == [[10, 11]] * 5
        dist.all_to_all_single(x := torch.empty(4, 2), own, [1, 1, 2], [4, 2, 0])  # none is
        assert torch.isfinite(x).all()
        dist.all_to_all_single(x := torch.empty(2, 2), torch.empty(0, 2), [0, 0, 2], [0, 0, 0])
        assert torch.isfinite(x).all()
        dist.all_to_all(
            got := [torch.empty(size) for size in (1, 2, 3)], [torch.full((size,), float(size)) for size in (3, 2, 1)]
        )
        assert [part.tolist() for part in got] == [[1], [1, 1], [1, 1, 1]]


def test_what_a_rank_sends_to_itself_arrives() -> None:
    with opened(0, 1):
        x, y = torch.arange(5.0), torch.empty(5)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 0), dist.P2POp(dist.irecv, y, 0)]):
            work.wait()
        assert torch.equal(x, y)
        later = dist.irecv(z := torch.empty(5), 0)
        dist.isend(x, 0)
        later.wait()
        assert torch.equal(x, z)


# ---- messages


def as_rank(rank: int, mailbox: Any, script: Any, **more: Any) -> Any:
    with opened(rank, 4, mailbox=mailbox, **more):
        return script()


def test_control_messages_and_objects_go_through_the_mailbox() -> None:
    box = LocalMailbox()

    def sender() -> None:
        group = dist.new_group([1, 2])
        for number in (3, 4):
            dist.send(torch.tensor([number, 5]), 2, group=group, tag=1)
        dist.send(torch.tensor([True, False]), 2)
        dist.send_object_list([{"shape": (2, 3)}, torch.empty(3, device="meta")], 2, use_batch=True)
        dist.broadcast_object_list(["config", 7], src=1)
        dist.send(torch.ones(3), 2)  # an activation: not sent

    def receiver() -> list[Any]:
        group = dist.new_group([1, 2])
        dist.recv(x := torch.zeros(2, dtype=torch.int64), 1, group=group, tag=1)
        dist.irecv(y := torch.zeros(2, dtype=torch.int64), 1, group=group, tag=1).wait()
        dist.recv(flags := torch.zeros(2, dtype=torch.bool), 1)
        objects: list[Any] = [None, None]
        assert dist.recv_object_list(objects, 1, use_batch=True) == 1
        dist.broadcast_object_list(given := [None, None], src=1)
        dist.recv(z := torch.zeros(3), 1)
        assert z.abs().max() < 1
        return [x.tolist(), y.tolist(), flags.tolist(), objects[0], tuple(objects[1].shape), given]

    as_rank(1, box, sender)
    got = as_rank(2, box, receiver)
    assert got == [[3, 5], [4, 5], [True, False], {"shape": (2, 3)}, (3,), ["config", 7]]


def test_ranks_that_are_known_to_run_gather_and_scatter_real_objects() -> None:
    box, seen = LocalMailbox(), []

    def script() -> None:
        rank = dist.get_rank()
        dist.all_gather_object(everyone := [None] * 4, rank)
        dist.gather_object(rank, at_root := [None] * 4 if rank == 3 else None, dst=3)
        dist.scatter_object_list(mine := [None], [f"to {other}" for other in range(4)] if rank == 1 else None, src=1)
        dist.recv(x := torch.zeros(1, dtype=torch.int32)) if rank == 3 else dist.send(
            torch.ones(1, dtype=torch.int32), 3
        )
        seen.append((everyone, at_root, mine, x.tolist() if rank == 3 else None))

    # both need each other, and there is one world per process: the first is played on a second thread's mailbox by hand
    box.put(_key(1, 3, "all_gather"), _pickled(1))
    box.put(_key(1, 3, "gather"), _pickled(1))
    box.put(_key(1, 1, "scatter"), _pickled([_pickled(f"to {other}") for other in range(4)]))
    box.put(_key(1, 3, "tag 0"), b"=" + (9).to_bytes(4, "little"))
    as_rank(3, box, script, reachable={1, 3})
    # 0 and 2 do not run: 0 is like 1, 2 like 3
    assert seen == [([1, 1, 3, 3], [1, 1, 3, 3], ["to 3"], [9])]


def _key(sender: int, receiver: int, what: str) -> str:
    import zlib

    return f"{zlib.crc32(repr((0, 1, 2, 3)).encode()):08x}.0/{sender}>{receiver}/{what}/0"


def _pickled(thing: Any) -> bytes:
    import pickle

    return pickle.dumps(thing)


def test_without_the_peer_the_message_names_it() -> None:
    vote = torch.zeros(1, dtype=torch.int32)
    with opened(1, 4):
        with pytest.raises(NoPeerError, match="rank 2"):
            dist.recv(vote, 2)
        with pytest.raises(NoPeerError, match="rank 3"):
            dist.recv_object_list([None], 3)
        dist.send(vote, 2)  # nobody reads it: no harm
        dist.send_object_list([1], 2)
    with (
        opened(1, 4, mailbox=LocalMailbox(), mailbox_timeout_s=0.05),
        pytest.raises(NoPeerError, match=r"rank 2 .* 0\.05 s"),
    ):
        dist.recv(vote, 2)
    with opened(1, 4, mailbox=LocalMailbox(), reachable={0, 1}), pytest.raises(NoPeerError, match="does not run"):
        dist.recv(vote, 2)


def test_objects_of_a_virtual_root_are_missing_and_said_to_be() -> None:
    with opened(1, 4) as world:
        dist.broadcast_object_list(given := [None, 3], src=0)
        dist.broadcast_object_list(own := ["mine"], src=0)
        assert (given, own) == ([None, 3], ["mine"])
        assert len(world.notes) == 1
        assert "rank 0" in world.notes[0]
        world.calls = []
        dist.all_gather_object(things := [None] * 4, ["x"])
        things[0].append("y")
        assert things[1] == ["x"]
        assert [(call.kind, call.is_control) for call in world.calls] == [("all_gather", True)]


def test_what_rank_0_sets_in_the_store_others_get() -> None:
    from torch.distributed.distributed_c10d import _get_default_store

    box = LocalMailbox()

    def script() -> list[bytes]:
        store = _get_default_store()
        if dist.get_rank() == 0:
            store.set("shared", "42")
            store.set("shared", "43")
        store.set(f"of/{dist.get_rank()}", "mine")
        store.wait(["shared"])
        return [store.get("shared"), store.get(f"of/{dist.get_rank()}")]

    assert as_rank(0, box, script) == [b"43", b"mine"]
    assert as_rank(3, box, script) == [b"42", b"mine"]  # what was set first, however late it is read
    with pytest.raises(UnsupportedCommunicationError, match="set the key on every rank"):
        as_rank(0, box, lambda: _get_default_store().get("of nobody"))


def test_a_mailbox_over_a_store() -> None:
    box = serve_mailbox()
    other = connect_mailbox(box.port)
    box.put("a", b"\x00\x01")
    assert other.get("a", 5) == b"\x00\x01"
    with pytest.raises(TimeoutError):
        other.get("b", 0.05)
