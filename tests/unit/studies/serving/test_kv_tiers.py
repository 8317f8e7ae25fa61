"""Tiers below the GPU's cache: what they keep and what a copy takes by hand, and laws that hold for all of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prices import plain_times

from windtunnel.errors import SpecError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.serving import Deployment
from windtunnel.studies.serving.build import Engine, engine_of
from windtunnel.studies.serving.kv.tiers import Store, Tiers, tiers_of
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.replica.replica import Replica
from windtunnel.studies.serving.replica.rules import Rules
from windtunnel.studies.serving.run import serve_with
from windtunnel.studies.serving.step_time.times import TICKS_PER_S
from windtunnel.studies.serving.workload.files import read_workload
from windtunnel.studies.serving.workload.requests import Workload

MS = TICKS_PER_S // 1000


def engine(tiers: str | None, gpus: int = 1) -> Engine:
    deployment = Deployment(prefix_caching=True, gpu_memory_utilization=0.4, num_gpu_blocks=2000, kv_tiers=tiers)
    return engine_of(load_model("llama-3.1-8b"), parse_cluster(f"h100-sxm:{gpus}"), replace(deployment, tp=gpus))


def test_a_copy_takes_bytes_over_the_link_and_the_tier_holds_what_its_size_says() -> None:
    """Llama-3.1-8B keeps 128 KiB of a token: 2 MiB of a block of 16. PCIe 5 gives 0.84 of 64 GB/s to each GPU."""
    host, disk = (engine("host=1GiB,disk=4GiB@2GB/s@3ms").replica().cache.tiers or Tiers((), max)).stores
    assert (host.blocks, disk.blocks) == (512, 2048)
    link = parse_cluster("h100-sxm:1").host.offload_bandwidth_bytes_per_s
    assert host.copy_ticks(100) == pytest.approx(TICKS_PER_S * 100 * 2**21 / (0.84 * link))
    assert disk.copy_ticks(100) == pytest.approx(TICKS_PER_S * (0.003 + 100 * 2**21 / 2e9))
    two = (engine("host=1GiB,disk=4GiB@2GB/s@3ms", 2).replica().cache.tiers or Tiers((), max)).stores
    assert two[0].copy_ticks(100) == pytest.approx(host.copy_ticks(100) / 2, rel=1e-6)  # each GPU has half of it
    assert two[1].copy_ticks(100) == disk.copy_ticks(100)


def test_a_step_waits_for_the_slowest_tier_and_no_longer() -> None:
    """Two names of four blocks from the host at 1 ms a block, one from the disk at 3 ms and 2 ms latency."""
    tiers = Tiers([Store("host", 100, MS), Store("disk", 100, 3 * MS, 2 * MS)], lambda tokens, past: 10 * tokens * MS)
    tiers.stores[1].keep([1, 2, 3], 4)
    tiers.stores[0].keep([1, 2], 4)
    places = tiers.find([1, 2, 3, 4], 4, 64, 0, 300)
    assert places == [0, 0, 1]
    tiers.take(places, 4)
    assert tiers.waited() == max(8 * MS, 14 * MS)
    assert tiers.waited() == 0
    assert tiers.found_blocks == [8, 4]


def test_the_least_recently_used_goes_first_and_a_tail_before_its_head() -> None:
    store = Store("host", 3, 1.0)
    store.keep([1, 2], 1)
    store.keep([1, 3], 1)
    assert set(store.names) == {1, 2, 3}
    store.keep([4], 1)
    assert set(store.names) == {1, 3, 4}
    store.keep([5, 6, 7, 8], 1)
    assert set(store.names) == {5, 6, 7}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=40), st.integers(0, 20), st.integers(0, 20))
def test_more_room_never_keeps_less(prompts: list[tuple[int, int]], room: int, more: int) -> None:
    """What a smaller store keeps of the same stream of prompts a larger one keeps, too."""
    small, large = Store("host", room, 1.0), Store("host", room + more, 1.0)
    for whose, length in prompts:
        names = [10 * whose + place for place in range(length)]
        assert sum(name in small.names for name in names) <= sum(name in large.names for name in names)
        small.keep(names, 1)
        large.keep(names, 1)
        assert set(small.names) <= set(large.names)
        assert len(small.names) <= room


@pytest.fixture
def sessions(tmp_path: Path) -> Workload:
    rows = [
        {"session_id": f"s{one}", "timestamp": 400 * one, "input_length": 1600 * (turn + 1), "output_length": 60}
        | {"delay_s": 6 if turn else 0, "shared_tokens": 320}
        for turn in range(4)
        for one in range(20)
    ]
    (tmp_path / "sessions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return read_workload(tmp_path / "sessions.jsonl")


def test_more_host_memory_finds_more_and_a_tier_without_end_slow_is_none(sessions: Workload) -> None:
    results = [serve_with(engine(tiers), sessions) for tiers in (None, "host=2GB", "host=6GB", "host=60GB")]
    saved = [float(one.stamps.hit.sum()) for one in results if one.stamps]
    assert saved == sorted(saved)
    assert saved[-1] > 1.5 * saved[0]
    assert results[-1].ttft is not None
    assert results[0].ttft is not None
    assert results[-1].ttft.mean < results[0].ttft.mean
    slow = serve_with(engine("host=60GB@1kB/s"), sessions)
    assert slow.requests_csv() == results[0].requests_csv()
    assert slow.tier_hit_rates == {"host": 0.0}


def test_every_token_of_a_prompt_is_computed_or_found_once(sessions: Workload) -> None:
    store = Store("host", 4000, MS / 100)
    replica = Replica(plain_times(), Rules(prefix_caching=True), 900, stores=[store])
    sent, refused = simulate(sessions, [replica], None, block_size=16)
    assert not refused
    assert replica.pool.held == 0
    assert replica.cache.tiers is not None
    found = 16 * (replica.pool.hits + replica.cache.tiers.found_blocks[0])
    assert found == sum(one.cached_len for one in sent) > 0
    computed = replica.tally.tokens - sum(one.output - 1 for one in sent)
    assert replica.tally.preemptions == 0
    assert computed + found == sum(one.prompt for one in sent)


def test_replicas_share_a_remote_store_and_nothing_nearer(sessions: Workload) -> None:
    """Turns go round: the next one of a session finds its history where another replica has left it."""
    hits = {}
    for tiers in ("host=60GB@20GB/s", "remote=60GB@20GB/s"):
        result = serve_with(engine(tiers), sessions, replicas=3, router="round-robin")
        assert result.finished == len(sessions)
        hits[tiers[:4]] = next(iter(result.tier_hit_rates.values()))
    assert hits["remo"] > 1.5 * hits["host"]


@pytest.mark.parametrize(
    "text",
    ["", "tape=1TB@1GB/s", "host=1GB,host=1GB", "disk=1TB", "remote=1TB@1GB/s,host=1GB", "host=x", "disk=1TB@0GB/s"],
)
def test_tiers_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="kv_tiers"):
        tiers_of(text)
    if text == "host=x":
        with pytest.raises(SpecError, match="prefix-caching"):
            engine_of(
                load_model("llama-3.1-8b"),
                parse_cluster("h100-sxm:1"),
                Deployment(prefix_caching=False, kv_tiers="host=1GB"),
            )
