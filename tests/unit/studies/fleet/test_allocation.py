"""The search of Pollux's allocation: possible ones only, none worse than to stay, best on small sites."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from windtunnel.physics.engine.compiled.fleet.allocation_kernels import TINY, allocate


def problem(random: np.random.Generator, jobs: int, nodes: int, per_node: int):
    """Jobs that gain less and less from more GPUs, some of which hold GPUs already."""
    node_gpus = np.full(nodes, per_node)
    most = random.integers(1, nodes * per_node + 1, jobs)
    counts = np.arange(nodes * per_node + 1)
    speedup = np.stack(
        [counts ** random.uniform(0.3, 1.0, (jobs, 1)), counts ** random.uniform(0.2, 0.9, (jobs, 1))], 1
    )
    base, left, spanned = np.zeros((jobs, nodes), np.int64), node_gpus.copy(), np.zeros(nodes, bool)
    for job in range(jobs):
        row = np.minimum(random.integers(0, 3, nodes) * (random.random(nodes) < 0.5), left)
        if (row > 0).sum() > 1:
            row[spanned] = 0
        row = np.minimum(row, np.maximum(most[job] - (np.cumsum(row) - row), 0))
        spanned |= (row > 0) & ((row > 0).sum() > 1)
        base[job], left = row, left - row
    return base, speedup, random.uniform(0, 1, jobs), most, node_gpus, nodes / node_gpus.sum()


def mean_gain(x, base, speedup, factor, share):
    """The harmonic mean that is maximised, of one allocation or of each of several."""
    gained = speedup[np.arange(len(base)), ((x > 0).sum(-1) > 1).astype(int), x.sum(-1)] * share
    return len(base) / (1 / (gained * np.where((x != base).any(-1), factor, 1) + TINY)).sum(-1)


def possible(x, most, node_gpus):
    wide = ((x > 0).sum(-1) > 1)[..., None] & (x > 0)
    return (x.sum(-2) <= node_gpus).all(-1) & (x.sum(-1) <= most).all(-1) & (wide.sum(-2) <= 1).all(-1)


@pytest.mark.parametrize(("jobs", "nodes", "per_node"), [(1, 1, 4), (3, 2, 4), (12, 5, 8), (30, 4, 4)])
def test_allocations_are_possible_and_never_worse_than_to_stay(jobs, nodes, per_node):
    random = np.random.default_rng(jobs)
    improved = 0
    for _ in range(40):
        base, speedup, factor, most, node_gpus, share = problem(random, jobs, nodes, per_node)
        assert possible(base, most, node_gpus)
        x, again = np.empty_like(base), np.empty_like(base)
        allocate(base, speedup, factor, most, node_gpus, share, x)
        assert possible(x, most, node_gpus)
        before, after = (mean_gain(state, base, speedup, factor, share) for state in (base, x))
        assert after >= before
        improved += after > before
        allocate(base, speedup, factor, most, node_gpus, share, again)
        assert (x == again).all()
    assert improved > 20


def test_small_sites_get_nearly_always_what_trying_all_gives():
    random = np.random.default_rng(7)
    short = []
    states = np.array(list(product(product(range(4), repeat=2), repeat=3)))
    for _ in range(60):
        base, speedup, factor, most, node_gpus, share = problem(random, 3, 2, 3)
        best = mean_gain(states[possible(states, most, node_gpus)], base, speedup, factor, share).max()
        x = np.empty_like(base)
        allocate(base, speedup, factor, most, node_gpus, share, x)
        short.append(1 - mean_gain(x, base, speedup, factor, share) / best)
    assert np.mean(np.array(short) < 1e-9) > 0.8
    assert np.mean(short) < 0.01


def test_a_job_that_needs_what_two_nodes_have_left_gets_it_by_a_move():
    base = np.array([[1, 0], [0, 1], [0, 0]])
    speedup = np.tile(np.arange(5.0), (3, 2, 1))
    speedup[2, 0, 1:3], speedup[2, 1] = 0.1, 0.1  # of use on three GPUs of one node only
    speedup[:2, :, 2:] = 1.0
    x = np.empty_like(base)
    allocate(base, speedup, np.full(3, 0.9), np.array([1, 1, 4]), np.array([3, 3]), 2 / 6, x)
    assert x[2].tolist() in ([3, 0], [0, 3])
    assert (x[:2].sum(1) == 1).all()
