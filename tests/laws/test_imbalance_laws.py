"""Laws of uneven work: even is as if nothing was said, more uneven is never better, and nothing is lost or made."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packed_durations import op_durations
from small_jobs import Job, jobs

from windtunnel.physics.engine import Slowdown, replay
from windtunnel.physics.graph import Graph
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model, transformer
from windtunnel.physics.step.result import StageMemory
from windtunnel.studies.training import read_plan
from windtunnel.studies.training.layout import Layout, resolve
from windtunnel.studies.training.lowering.lower import lower
from windtunnel.studies.training.lowering.model_chunks import Piece, pieces_of
from windtunnel.studies.training.lowering.step import LoweredStep
from windtunnel.studies.training.memory.peak import memory_of
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import schedule
from windtunnel.studies.training.workload.router_load import RouterLoad, parse_router_load, rank_loads_of
from windtunnel.studies.training.workload.sequence_lengths import (
    Lengths,
    attention_shares,
    attention_variants,
)

law = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
spread = jobs(spread=True)
ANOMALY = 1.0001  # what overlaps differently may cost a little more or less


@dataclass(frozen=True)
class Taken:
    """One step, replayed."""

    layout: Layout
    pieces: tuple[Piece, ...]
    step: LoweredStep
    pricer: Pricer
    makespan_ns: int
    memory: tuple[StageMemory, ...]

    def replayed(self, durations: np.ndarray) -> int:
        return replay_of(self.step.graph, durations, self.step, self.pricer)

    @property
    def allocated_bytes(self) -> np.ndarray:
        return np.array([stage.peak_allocated_bytes for stage in self.memory])  # reserved goes in jumps, and back

    @property
    def saved_bytes(self) -> np.ndarray:
        return np.array([piece.passes.saved_bytes for piece in self.pieces])

    @property
    def traffic(self) -> list[dict[str, float]]:
        return [segment.traffic_bytes for segment in self.step.segments]


def replay_of(graph: Graph, durations: np.ndarray, step: LoweredStep, pricer: Pricer) -> int:
    factors = np.array(pricer.training.slowdown_factors())
    return replay(graph, durations, Slowdown(step.interference, factors)).makespan_ns


def take(layout: Layout, router: RouterLoad | None = None) -> Taken:
    pieces, pricer = pieces_of(layout, router), Pricer(layout)
    chosen = schedule(layout.schedule, layout.plan.pp, layout.micro_batches, layout.plan.virtual_stages)
    step = lower(layout, pieces, chosen, pricer)
    factors = np.array(pricer.training.slowdown_factors())
    timeline = replay(step.graph, step.duration_ns, Slowdown(step.interference, factors))
    memory = memory_of(layout, pieces, step, timeline.end_ns)
    return Taken(layout, pieces, step, pricer, timeline.makespan_ns, memory)


def layout_of(job: Job) -> Layout:
    return resolve(job.model, job.cluster, read_plan(job.plan))


def load_of(layout: Layout, tokens: list[list[int]]) -> RouterLoad:
    """Tokens of each expert; layers take the rows in turn."""
    rows = [np.array(row, float) / sum(row) for row in tokens]
    return RouterLoad("", tuple(rows[layer % len(rows)] for layer in range(layout.model.n_layers)))


tokens = st.lists(st.integers(1, 50), min_size=4, max_size=4)
per_layer = st.lists(tokens, min_size=1, max_size=4)


def assert_same(one: Taken, other: Taken) -> None:
    assert one.makespan_ns == other.makespan_ns
    assert (one.step.duration_ns == other.step.duration_ns).all()
    assert one.memory == other.memory
    assert one.traffic == other.traffic


# ----------------------------------------------------------------------------------------------------------- experts


@law
@given(spread, st.integers(1, 10**9))
def test_an_even_router_is_no_router(job, each):
    layout = layout_of(job)
    none = take(layout)
    assert_same(take(layout, load_of(layout, [[each] * 4])), none)
    assert_same(take(layout, parse_router_load("zipf:0", layout.model, seed=each)[0]), none)


@pytest.mark.parametrize("name", ["deepseek-v3", "mixtral-8x7b", "llama-4-scout", "qwen3-30b-a3b", "gpt-oss-120b"])
def test_an_even_router_is_even_whatever_the_number_of_experts(name):
    model = load_model(name)
    experts = max(layer.feed_forward.experts for layer in model.layers if layer.feed_forward.kind == "moe")
    (even,) = parse_router_load("zipf:0", model)
    for ep in (n for n in range(1, experts + 1) if experts % n == 0):
        assert all((even.rank_loads(layer, ep) == 1.0).all() for layer in range(model.n_layers))


@law
@given(spread, tokens, st.integers(1, 40), st.integers(0, 1), st.integers(0, 1))
def test_more_skew_is_never_faster_nor_smaller(job, given_tokens, moved, giver, taker):
    """Tokens move from the cooler to the hotter rank: its loads majorise the others."""
    layout = layout_of(job)
    half = 4 // layout.plan.ep
    hot = int(sum(given_tokens[half:]) > sum(given_tokens[:half])) if layout.plan.ep == 2 else 0
    more = list(given_tokens)
    source, target = (2 * (1 - hot) + giver, 2 * hot + taker)
    moved = min(moved, more[source] - 1)
    more[source] -= moved
    more[target] += moved
    less_skewed, skewed = (take(layout, load_of(layout, [row])) for row in (given_tokens, more))
    assert skewed.makespan_ns * ANOMALY >= less_skewed.makespan_ns
    assert (skewed.allocated_bytes >= less_skewed.allocated_bytes).all()
    assert (skewed.saved_bytes >= less_skewed.saved_bytes).all()


@law
@given(spread, per_layer)
def test_any_skew_is_slower_than_none(job, rows):
    layout = layout_of(job)
    even, uneven = take(layout), take(layout, load_of(layout, rows))
    assert uneven.makespan_ns * ANOMALY >= even.makespan_ns
    if layout.plan.pp == 1:  # with a pipeline a rank may keep less of one chunk and more of another
        assert (uneven.saved_bytes >= even.saved_bytes).all()


@law
@given(spread, per_layer, st.randoms())
def test_the_order_of_a_ranks_experts_does_not_matter(job, rows, random):
    layout = layout_of(job)
    half = 4 // layout.plan.ep
    shuffled = [
        [n for start in range(0, 4, half) for n in random.sample(row[start : start + half], half)] for row in rows
    ]
    assert_same(take(layout, load_of(layout, shuffled)), take(layout, load_of(layout, rows)))


@law
@given(spread, per_layer)
def test_flops_and_bytes_are_neither_lost_nor_made(job, rows):
    layout = layout_of(job)
    even, uneven = take(layout), take(layout, load_of(layout, rows))
    for stage in range(len(even.pieces)):
        for kind in np.flatnonzero(even.step.segment_of[stage] >= 0):
            one, other = (t.step.segments[t.step.segment_of[stage, kind]] for t in (even, uneven))
            assert other.flops == pytest.approx(one.flops, rel=1e-12)
            assert other.traffic_bytes == pytest.approx(one.traffic_bytes, rel=1e-12)
    for layer, shares in enumerate(load_of(layout, rows).shares):
        assert shares is not None
        assert shares.sum() == pytest.approx(1.0)
        assert load_of(layout, rows).rank_loads(layer, layout.plan.ep).mean() == pytest.approx(1.0)


@law
@given(spread, per_layer)
def test_one_expert_rank_has_all_experts(job, rows):
    layout = layout_of(job.with_plan(ep=1))
    assert_same(take(layout, load_of(layout, rows)), take(layout))


@law
@given(spread, per_layer)
def test_what_was_asked_before_does_not_matter(job, rows):
    """Passes are remembered: with a load and without."""
    layout = layout_of(job)
    fresh = replace(layout, model=replace(layout.model))
    load = load_of(layout, rows)
    before = take(layout), take(layout, load)
    after = take(fresh, load), take(fresh)
    assert_same(before[0], after[1])
    assert_same(before[1], after[0])


@law
@given(st.floats(0, 5), st.floats(0, 3), st.integers(0, 2**32), st.sampled_from([1, 2, 4, 8, 16]))
def test_a_steeper_power_law_has_a_more_popular_favourite(exponent, more, seed, ep):
    model = load_model("deepseek-v2-lite")
    flat, steep = (parse_router_load(f"zipf:{a:.6f}", model, seed=seed)[0] for a in (exponent, exponent + more))
    layout = resolve(model, parse_cluster("h100-sxm:16"), read_plan({"ep": ep, "global_batch": 16, "seq_len": 512}))
    for layer in range(1, model.n_layers):
        one, other = (load.shares[layer] for load in (flat, steep))
        # Every partial sum from the top: majorisation.
        assert (np.cumsum(np.sort(other)[::-1]) >= np.cumsum(np.sort(one)[::-1]) - 1e-12).all()
        # A rank is never hotter than its experts' number of favourites.
        assert steep.rank_loads(layer, ep).max() <= ep * np.sort(other)[-64 // ep :].sum() + 1e-8
    loads = rank_loads_of(steep, layout)
    assert loads.worst[0] == max(loads.hottest)
    assert all(1.0 <= hottest >= full for hottest, full in zip(loads.hottest, loads.fullest, strict=True))


def test_the_same_seed_gives_the_same_loads():
    model = transformer(hidden=256, layers=4, heads=8, vocab=4096, ffn=256, experts=8, topk=2, family="mixtral")
    one, again, other = (parse_router_load("zipf:1", model, seed=seed)[0] for seed in (7, 7, 8))
    assert all((a == b).all() for a, b in zip(one.shares, again.shares, strict=True))
    assert any((a != b).any() for a, b in zip(one.shares, other.shares, strict=True))


# --------------------------------------------------------------------------------------------------------- sequences


def even_lengths(length: int) -> Lengths:
    return Lengths("", np.array([length]), np.ones(1))


@law
@given(jobs(), st.integers(1, 3))
def test_documents_as_long_as_sequences_change_nothing(job, times):
    layout = layout_of(job)
    taken = take(layout)
    shares = attention_shares(even_lengths(times * layout.plan.seq_len), layout, 0)
    variants = attention_variants(taken.step, taken.pieces, taken.pricer)
    for replica in shares:
        assert (op_durations(taken.step, variants(replica)) == taken.step.duration_ns).all()


@law
@given(jobs(), st.integers(0, 5), st.integers(0, 2**63 - 1))
def test_shorter_documents_are_never_slower(job, halvings, seed):
    layout = layout_of(job)
    taken = take(layout)
    variants = attention_variants(taken.step, taken.pieces, taken.pricer)
    length = layout.plan.seq_len >> halvings
    times = []
    for tokens_each in (length, length // 2):
        shares = attention_shares(even_lengths(tokens_each), layout, seed)
        assert shares == pytest.approx(tokens_each / layout.plan.seq_len)
        times.append(taken.replayed(op_durations(taken.step, variants(shares[0]))))
    assert times[1] <= times[0] * ANOMALY
    assert times[0] <= taken.makespan_ns * ANOMALY


@law
@given(
    jobs(), st.lists(st.tuples(st.integers(1, 5000), st.floats(0.01, 1)), min_size=1, max_size=5), st.integers(0, 99)
)
def test_the_same_seed_gives_the_same_shares(job, kinds, seed):
    layout = layout_of(job)
    lengths = np.array(sorted({length for length, _ in kinds}))
    weight = np.array([one for _, one in kinds][: len(lengths)])
    histogram = Lengths("", lengths, weight / weight.sum())
    shares = attention_shares(histogram, layout, seed)
    assert shares.shape == (layout.dp, layout.micro_batches)
    assert (shares > 0).all()
    assert (shares <= 1 + 1e-12).all()
    assert (attention_shares(histogram, layout, seed) == shares).all()
