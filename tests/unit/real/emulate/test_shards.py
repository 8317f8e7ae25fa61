"""Shards that are tied to the real rank's own."""

from typing import Any

import pytest

from windtunnel.real.capture.virtual_world.peer_data import PEERS_LIKE_ME, Exchange
from windtunnel.real.emulate.peers.shards import PERIOD, TiedShards
from windtunnel.studies.programs.communication import Communication

torch = pytest.importorskip("torch")


def call(kind: str, n: int, place: int, reduce_op: str = "") -> Communication:
    return Communication(kind, "0", tuple(range(n)), place, 0, reduce_op=reduce_op)


def gathered(policy: Any, own: Any, n: int, place: int) -> Any:
    whole = torch.full((n * own.numel(),), float("nan"), dtype=own.dtype)
    part = whole[place * own.numel() : (place + 1) * own.numel()]
    part.copy_(own)
    policy.fill(Exchange(call("all_gather", n, place), (part,), (whole,), lambda tensor: None))
    return whole.view(n, -1)


@pytest.mark.parametrize(("n", "place", "count"), [(4, 1, 10), (3, 2, PERIOD + 7), (1024, 5, 3), (2, 0, 2 * PERIOD)])
def test_parts_are_as_large_as_the_own_one_and_differ(n: int, place: int, count: int) -> None:
    own = torch.randn(count)
    rows = gathered(TiedShards(PEERS_LIKE_ME).policy(), own, n, place)
    assert torch.equal(rows[place], own)
    assert torch.equal(rows.abs(), own.abs().expand(n, count))
    if count > 8:
        assert len({tuple(row.tolist()) for row in rows}) == n


def test_the_own_gradient_is_that_of_all_tied_parts() -> None:
    """By autograd: a loss of the gathered parameter, differentiated with respect to the own part."""
    n, place, count = 5, 2, PERIOD + 3
    policy = TiedShards(PEERS_LIKE_ME).policy()
    own = torch.randn(count, dtype=torch.float64)
    signs = gathered(policy, own, n, place) / own
    tied = own.clone().requires_grad_()
    weights = torch.randn(n, count, dtype=torch.float64)
    (weights * (tied * signs)).sum().backward()
    out = torch.empty(count, dtype=torch.float64)
    full = weights.reshape(-1).clone()  # the gradient with respect to the gathered parameter
    policy.fill(Exchange(call("reduce_scatter", n, place, "avg"), (full,), (out,), lambda tensor: None))
    torch.testing.assert_close(out, tied.grad / n**0.5)
    policy.fill(Exchange(call("reduce_scatter", n, place, "sum"), (full,), (out,), lambda tensor: None))
    torch.testing.assert_close(out, tied.grad * n**0.5)


def test_gathers_that_are_not_in_place_are_left_to_the_policy_beneath() -> None:
    policy = TiedShards(PEERS_LIKE_ME).policy()
    own, whole = torch.randn(4), torch.empty(12)
    policy.fill(Exchange(call("all_gather", 3, 0), (own,), (whole,), lambda tensor: None))
    assert torch.equal(whole.view(3, 4), own.expand(3, 4))
    full, out = torch.arange(12.0), torch.empty(4)
    policy.fill(Exchange(call("reduce_scatter", 3, 1, "sum"), (full,), (out,), lambda tensor: None))
    assert out.tolist() == [12.0, 15.0, 18.0, 21.0]


def test_of_a_large_gradient_some_parts_are_taken_others_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.real.emulate.peers import shards

    n, count = 40, 8
    policy = TiedShards(PEERS_LIKE_ME).policy()
    signs = gathered(policy, torch.ones(count), n, 0)
    monkeypatch.setattr(shards, "WHOLE", 0)
    full, out = (signs * torch.arange(n)[:, None]).reshape(-1), torch.empty(count)
    sums = []
    for _ in range(3):
        policy.fill(Exchange(call("reduce_scatter", n, 0, "avg"), (full,), (out,), lambda tensor: None))
        sums.append(round(float(out[0]) * shards.MOST**0.5))
    assert torch.allclose(out, out[0])
    assert len(set(sums)) == 3
    assert sums[0] == sum(1 + (15 + step) % 39 for step in range(15))
