"""What calls in a virtual world say, what is refused, and what data comes back."""

from __future__ import annotations

import json
import time
import weakref
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
dist = torch.distributed

from small_models import rank_of  # noqa: E402
from worlds import Clock, Hands, hands, nothing_left, opened  # noqa: E402, F401

from windtunnel.errors import UserError  # noqa: E402
from windtunnel.real.capture.recorder.recorder import Recorder  # noqa: E402
from windtunnel.real.capture.torch_private import distributed as compat  # noqa: E402
from windtunnel.real.capture.virtual_world.peer_data import Exchange, PeerPolicy, fill_from_tape, like_me, noise  # noqa: E402
from windtunnel.real.capture.virtual_world.refusals import (  # noqa: E402
    UnsupportedCommunicationError,
    WorldError,
)


@pytest.mark.skipif(not hasattr(dist, "gather_into_tensor"), reason="PyTorch 2.14 has it first")
def test_one_tensor_gathered_says_what_is_asked() -> None:
    for rank in (0, 1):
        with opened(rank, 4) as world:
            world.calls = []
            dist.gather_into_tensor(torch.ones(2), torch.empty(8) if rank == 0 else None, dst=0)
            assert [(c.kind, c.bytes, c.peer) for c in world.calls] == [("gather", 32, 0)]


def test_ranks_of_a_group_may_come_from_an_array() -> None:
    with opened(1, 4) as world:
        world.calls = []
        dist.all_reduce(torch.ones(3), group=dist.new_group(list(np.arange(4)[1::2])))
    assert json.dumps(world.calls[0].members) == "[1, 3]"


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
        if not callable(dist.ReduceOp.PREMUL_SUM):  # 2.12 does not show its factor
            return
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

    with opened(1, 4, peers=PeerPolicy(fill_from_tape(tape))):
        dist.all_reduce(x := torch.ones(2))
        dist.all_gather_into_tensor(y := torch.empty(8), torch.ones(2))
        assert x.tolist() == [42, 42]
        assert y.tolist() == [1] * 8
    with opened(1, 4, peers=PeerPolicy(like_me, {"all_gather": noise})):
        dist.all_to_all_single(x := torch.empty(4), torch.arange(4.0))
        dist.all_gather_into_tensor(y := torch.empty(8), torch.ones(2))
        assert x.tolist() == [1] * 4
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


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: dist.all_gather([x.clone()] * 3, x),
        lambda x: dist.all_gather_into_tensor(x.new_empty(31), x),
        lambda x: dist.reduce_scatter(x.clone(), [x] * 3),
        lambda x: dist.reduce_scatter_tensor(x.clone(), x.new_empty(24)),
        lambda x: dist.gather(x, [x.clone()] * 3, dst=1),
        lambda x: dist.scatter(x.clone(), [x] * 3, src=1),
        lambda x: dist.all_to_all([x.clone()] * 4, [x] * 3),
        lambda x: dist.all_to_all_single(x.new_empty(6), x.new_empty(6)),
    ],
)
def test_parts_that_do_not_fit_the_group_are_refused(wrong: Any, fake: bool) -> None:
    """As every real library does; of tensors without data, no shape would ever say so."""
    with ExitStack() as stack:
        if fake:
            world = stack.enter_context(rank_of(4, 1, fake="cpu"))
            stack.enter_context(Recorder(1, 4, world))
        else:
            stack.enter_context(opened())
        with pytest.raises(WorldError, match="among 4 ranks"):
            wrong(torch.ones(8))


@pytest.mark.parametrize("call", ["all_reduce", "all_gather_into_tensor", "irecv"])
def test_a_handle_holds_its_tensors_until_it_is_dropped(call: str) -> None:
    with opened():
        tensor = torch.zeros(8)
        seen = weakref.ref(tensor)
        if call == "all_gather_into_tensor":
            handle = dist.all_gather_into_tensor(tensor, torch.ones(2), async_op=True)
        else:
            handle = dist.irecv(tensor, 0) if call == "irecv" else dist.all_reduce(tensor, async_op=True)
        del tensor
        handle.wait()
        assert seen() is not None
        assert handle.is_completed()
        del handle
        assert seen() is None
