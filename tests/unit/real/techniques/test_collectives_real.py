"""Partitioned collectives, prioritised all-to-alls, packed experts and ordered groups on gloo."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from windtunnel.errors import SpecError  # noqa: E402
from windtunnel.real.techniques import collective_partitioning as partitioning  # noqa: E402
from windtunnel.real.techniques import megascale, prioritised_all_to_all  # noqa: E402
from windtunnel.real.techniques.megascale.groups import checked  # noqa: E402

pytestmark = pytest.mark.extras


def _all_reduces():
    rank, world = dist.get_rank(), dist.get_world_size()
    inside, across = partitioning.two_levels(2)
    generator = torch.Generator().manual_seed(rank)
    all_reduces = {}
    for name, x in (
        ("integers", torch.randint(-9, 9, (1001,), generator=generator).float()),
        ("floats", torch.randn(1001, generator=generator)),
    ):
        whole = x.clone()
        dist.all_reduce(whole)
        all_reduce = partitioning.all_reduce_by_group(x)
        two = partitioning.all_reduce_by_group(x, inside, across)
        same = [torch.empty_like(two) for _ in range(world)]
        dist.all_gather(same, two)
        all_reduces[name] = (
            float((all_reduce - whole).abs().max()),
            float((two - whole).abs().max()),
            all(torch.equal(other, two) for other in same),
        )
    return all_reduces


def test_all_reduce_by_primitive_and_by_group(on_ranks) -> None:
    for found in on_ranks(4, _all_reduces):
        assert found["integers"] == (0.0, 0.0, True)
        primitive, group, same = found["floats"]
        assert primitive <= 1e-5
        assert group <= 1e-5
        assert same


def _chunked(pieces):
    rank, world = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    weight = torch.randn(16, 24, generator=torch.Generator().manual_seed(9), requires_grad=True)
    shard = torch.randn(32, 16, generator=generator, requires_grad=True)
    whole = torch.randn(32 * world, 16, generator=generator, requires_grad=True)
    out = {}
    for name, function, x in (
        ("gather", partitioning.gather_then_matmul, shard),
        ("scatter", partitioning.matmul_then_scatter, whole),
    ):
        x.grad = weight.grad = None
        y = function(x, weight, None, pieces)
        (y * torch.linspace(0, 1, y.numel()).view_as(y)).sum().backward()
        out[name] = (y.detach(), x.grad.clone(), weight.grad.clone())
    return out


def test_chunked_linears_are_those_in_one_piece_forward_and_backward(on_ranks) -> None:
    plain = on_ranks(2, _chunked, 1)
    for pieces in (2, 4, 8):
        for one, other in zip(plain, on_ranks(2, _chunked, pieces), strict=True):
            for name in ("gather", "scatter"):
                for a, b in zip(one[name], other[name], strict=True):
                    assert torch.allclose(a, b, rtol=1e-5, atol=1e-5), name


def _right_answers():
    rank, world = dist.get_rank(), dist.get_world_size()
    shard = torch.full((4, 3), float(rank + 1))
    weight = torch.ones(3, 2)
    gathered = partitioning.gather_then_matmul(shard, weight, None, 2)
    scattered = partitioning.matmul_then_scatter(torch.arange(8.0).view(-1, 1) * (rank + 1), torch.ones(1, 1), None, 2)
    rows = torch.arange(4.0) + 4 * rank
    return bool(
        torch.equal(gathered, torch.cat([torch.full((4, 2), 3.0 * (r + 1)) for r in range(world)]))
        and torch.equal(scattered.view(-1), rows * 3)
    )


def test_pieces_land_on_the_right_ranks(on_ranks) -> None:
    assert on_ranks(2, _right_answers) == [True, True]


def _communicate(policy, order, delay_s):
    rank, world = dist.get_rank(), dist.get_world_size()
    chance = random.Random(rank)
    received, reduced = [], []
    with prioritised_all_to_all.Communicator(policy, order=order, micro_op_bytes=4 * 256, wait_most_s=0.02) as lane:
        waits = []
        for layer in range(4):
            time.sleep(chance.random() * delay_s)
            source = torch.arange(8.0) + 100 * rank + layer
            received.append(torch.empty(8))
            lane.all_to_all(received[-1], source).wait(30)
            reduced.append(torch.full((1000,), float(rank + 1 + layer)))
            waits.append(lane.all_reduce(reduced[-1]))
        for one in waits:
            one.wait(30)
    half = 8 // world
    right = all(
        torch.equal(
            got, torch.cat([torch.arange(8.0)[rank * half : (rank + 1) * half] + 100 * r + layer for r in range(world)])
        )
        for layer, got in enumerate(received)
    )
    right &= all(float(x.min()) == float(x.max()) == sum(r + 1 + layer for r in range(world))
                 for layer, x in enumerate(reduced))  # fmt: skip
    return "".join(lane.executed), right


@pytest.mark.parametrize(
    ("policy", "order"),
    [("leader", ""), ("static", "a" + "arr" * 3), ("static", "arrrr" * 4), ("adaptive", "a" + "arr" * 3)],
)
def test_one_order_on_all_ranks_and_right_sums_under_random_delays(on_ranks, policy: str, order: str) -> None:
    found = on_ranks(2, _communicate, policy, order, 0.02)
    assert all(right for _, right in found)
    assert found[0][0] == found[1][0]
    assert sorted(found[0][0]) == ["a"] * 4 + ["r"] * 16
    if policy == "static":
        assert found[0][0].startswith(order)


def _one_fails():
    lane = prioritised_all_to_all.Communicator("leader")
    failed = lane.all_to_all(torch.empty(3), torch.ones(3), [1, 1], [1, 1])  # splits that do not sum up
    try:
        failed.wait(20)
    except RuntimeError:
        try:
            lane.all_reduce(torch.ones(2)).wait(20)
        except RuntimeError:
            return "raised twice"
    return "not raised"


def test_a_failing_collective_is_raised_by_what_waits(on_ranks) -> None:
    assert on_ranks(2, _one_fails) == ["raised twice"] * 2


def _packed(packings):
    world, rank = dist.get_world_size(), dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    home = torch.randn(8, 8, generator=generator) / 3
    x = torch.randn(64, 8, generator=generator)
    upstream = torch.randn(64, 8, generator=generator)
    expert_of = torch.randint(0, world, (64,), generator=generator)
    layer = prioritised_all_to_all.PackedExperts(home, lambda t, w: torch.tanh(t @ w))
    found = []
    for p in packings:
        layer.pack(p)
        layer.bytes_left = 0
        leaf = x.clone().requires_grad_()
        out = layer(leaf, expert_of)
        (out * upstream).sum().backward()
        layer.reduce_gradients()
        gradients = torch.zeros(world, 8, 8)
        for expert, weight in layer.weights.items():
            gradients[expert] = weight.grad
            weight.grad = None
        dist.all_reduce(gradients)
        found.append((out.detach(), leaf.grad, gradients / p, layer.bytes_left))
    # Every token to one expert: the others are given none, and learn nothing.
    layer.pack(2)
    alone = layer(x, torch.zeros(64, dtype=torch.long))
    alone.sum().backward()
    layer.reduce_gradients()
    learns = {expert: bool(weight.grad.any()) for expert, weight in layer.weights.items()}
    # From a checkpoint at one expert a rank into new objects, packed otherwise.
    layer.pack(1)
    again = prioritised_all_to_all.PackedExperts(layer.weights[rank], layer.expert, 2)
    assert torch.equal(again(x, expert_of), found[0][0])
    first = home.clone()
    dist.broadcast(first, 0)
    assert torch.allclose(alone, torch.tanh(x @ first), atol=1e-6)
    assert learns == {expert: expert == 0 for expert in _held(rank)}
    return found


def _held(rank):
    """Of four experts, two to a rank: blocks of two ranks hold all."""
    return (0, 1) if rank % 2 == 0 else (2, 3)


def test_packing_changes_bytes_and_nothing_else(on_ranks) -> None:
    for found in on_ranks(4, _packed, (1, 2, 4, 2, 1)):
        first = found[0]
        for out, inward, gradients, _ in found[1:]:
            assert torch.equal(out, first[0])
            assert torch.allclose(inward, first[1], atol=1e-6)
            assert torch.allclose(gradients, first[2], atol=2e-5)
        bytes_left = [one[3] for one in found]
        assert bytes_left[0] > bytes_left[1] > bytes_left[2] == 0
        assert bytes_left[4] == bytes_left[0]


FAMILIES = [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 1, 2, 3]]]


def _groups():
    random.seed(dist.get_rank())
    time.sleep(random.random() * 0.1)
    groups = []
    for group in megascale.make_groups(FAMILIES):
        x = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(x, group=group)
        groups.append(float(x))
    return groups


def test_groups_made_by_their_members_alone_work(on_ranks) -> None:
    for rank, sums in enumerate(on_ranks(4, _groups)):
        assert sums == [sum(next(one for one in family if rank in one)) for family in FAMILIES]


def _alone(folder):
    if dist.get_rank() == 1:
        (folder / "gone").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        megascale.make_groups([[[0, 1]]], timeout_s=1.0)
    except dist.DistStoreError as error:
        return str(error)
    return ""


@pytest.mark.long
def test_a_group_whose_member_has_died_is_not_waited_for_longer_than_asked(on_ranks, tmp_path) -> None:
    assert "wait timeout after 1000ms" in on_ranks(2, _alone, tmp_path, dies=1)[0]
    assert (tmp_path / "gone").exists()


def test_a_family_holds_each_rank_once() -> None:
    with pytest.raises(SpecError, match="each rank"):
        checked([[[0, 1], [1, 2]]], 3)
