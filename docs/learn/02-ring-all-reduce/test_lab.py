"""Grades lab 2: laws, the worked example, then windtunnel's own ring."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

import windtunnel
from windtunnel.physics.cost.communication.collectives import Group, fabric_of, formula

RANKS = [2, 3, 4, 8]


# ------------------------------------------------------------------------------------------------------------- laws


@pytest.mark.parametrize("ranks", RANKS)
def test_chunks_cover_the_buffer_once_and_are_even(lab: ModuleType, ranks: int) -> None:
    for length in (ranks, 17, 1000):
        pieces = lab.chunks(length, ranks)
        assert len(pieces) == ranks
        assert [place for piece in pieces for place in range(length)[piece]] == list(range(length))
        sizes = [len(range(length)[piece]) for piece in pieces]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("ranks", RANKS)
def test_every_rank_sends_one_chunk_to_its_neighbour_in_each_step(lab: ModuleType, ranks: int) -> None:
    steps = lab.schedule(ranks)
    assert len(steps) == 2 * (ranks - 1)
    for place, step in enumerate(steps):
        assert sorted(one.source for one in step) == list(range(ranks)), f"step {place}: each rank sends once"
        for one in step:
            assert one.target == (one.source + 1) % ranks, f"step {place}: {one} does not go to the neighbour"
            assert one.adds == (place < ranks - 1), f"step {place}: {one}, reduce-scatter adds, all-gather does not"


@pytest.mark.parametrize("ranks", RANKS)
def test_after_the_reduce_scatter_each_chunk_is_whole_on_one_rank_of_its_own(lab: ModuleType, ranks: int) -> None:
    """Follow the ranks whose part is in each chunk: no part may be added twice."""
    inside = [[{rank} for _ in range(ranks)] for rank in range(ranks)]
    everyone = set(range(ranks))
    steps = lab.schedule(ranks)
    for place, step in enumerate(steps):
        sent = [set(inside[one.source][one.chunk]) for one in step]
        for message, parts in zip(step, sent, strict=True):
            if message.adds:
                assert not parts & inside[message.target][message.chunk], "a part is added twice"
                inside[message.target][message.chunk] |= parts
            else:
                assert parts == everyone, "an all-gather passes on a chunk that is not complete"
                inside[message.target][message.chunk] = parts
        if place == ranks - 2:
            whole = [(r, c) for r in range(ranks) for c in range(ranks) if inside[r][c] == everyone]
            assert sorted(r for r, _ in whole) == sorted(c for _, c in whole) == list(range(ranks))
    for rank in range(ranks):
        for chunk in range(ranks):
            assert inside[rank][chunk] == everyone, f"whose parts chunk {chunk} of rank {rank} has at the end"


@pytest.mark.parametrize("ranks", RANKS)
def test_everyone_ends_with_the_same_sum_and_inputs_are_kept(lab: ModuleType, ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    buffers = [rng.normal(size=37) for _ in range(ranks)]
    before = [one.copy() for one in buffers]
    after = lab.all_reduce(buffers)
    for one in after:
        assert np.allclose(one, np.sum(before, axis=0))
        assert np.array_equal(one, after[0]), "ranks must agree to the last bit"
    for rank, (old, new) in enumerate(zip(before, buffers, strict=True)):
        assert np.array_equal(old, new), f"the input of rank {rank} was changed"


def test_each_chunk_is_summed_on_its_own_way_round_the_ring(lab: ModuleType) -> None:
    """1e16 + 1 is 1e16 in floats. So one of the three chunks, which begins behind the large number, keeps the 1."""
    after = lab.all_reduce([np.full(3, value) for value in (1e16, 1.0, -1e16)])
    assert sorted(after[0].tolist()) == [0.0, 0.0, 1.0], "the order of the ring, not that of a sum on one rank"


def test_a_rank_never_sends_more_than_twice_the_buffer(lab: ModuleType) -> None:
    sent = [lab.bytes_sent(ranks, 1e9) for ranks in (2, 4, 64, 4096)]
    assert sent[0] == 1e9
    assert sent == sorted(sent)
    assert 1.999e9 < sent[-1] < 2e9


# --------------------------------------------------------------------------------------------------- worked example


def test_the_example_of_the_page(lab: ModuleType) -> None:
    protocol = lab.Protocol(base_s=20e-6, hop_s=2e-6, seconds_per_byte=1 / 400e9)
    assert lab.bytes_sent(8, 1e9) == pytest.approx(1.75e9)
    seconds = lab.ring_s(8, 1e9, protocol)
    assert seconds == pytest.approx(4.423e-3)
    assert lab.bus_bandwidth(8, 1e9, seconds) == pytest.approx(395.7e9, rel=1e-3)
    quick = lab.Protocol(base_s=5e-6, hop_s=1e-6, seconds_per_byte=1 / 170e9)
    assert lab.fastest_s(8, 1e9, [quick, protocol]) == seconds
    assert lab.fastest_s(8, 1e4, [quick, protocol]) == pytest.approx(19.1e-6, abs=0.005e-6)


# ------------------------------------------------------------------------------------------- windtunnel as the oracle


@pytest.mark.parametrize("name", ["a100-80gb", "h100-sxm", "b200"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_times_are_windtunnels_ring_inside_a_node(lab: ModuleType, name: str, ranks: int) -> None:
    cluster = windtunnel.parse_cluster(f"{name}:8")
    fabric = fabric_of(cluster)
    protocols = [lab.Protocol(one.base_s, one.hop_s, one.seconds_per_byte) for one in fabric.protocols]
    for bytes_total in (1e3, 1e5, 1e6, 3e7, 1e9):
        theirs = formula("all_reduce", bytes_total, Group(ranks, ranks), cluster, "ring")
        assert lab.fastest_s(ranks, bytes_total, protocols, fabric.extra_steps) == pytest.approx(theirs)
