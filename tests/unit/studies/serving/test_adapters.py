"""LoRA adapters: what a slot takes and its products by hand, and laws of slots."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from prices import plain_times

from windtunnel.errors import SpecError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.serving import Deployment, Workload
from windtunnel.studies.serving.adapters import Adapters, Slots, adapters_of, asked_for, products_s, slot_bytes
from windtunnel.studies.serving.build import Engine, engine_of
from windtunnel.studies.serving.disaggregated.pools import pools_of
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.replica.replica import Replica
from windtunnel.studies.serving.replica.rules import Rules
from windtunnel.studies.serving.run import serve_with
from windtunnel.studies.serving.workload.lengths import arrivals, lengths
from windtunnel.studies.serving.workload.requests import Turns

SOME = "adapters=2,rank=8,resident=2"
LLAMA, H100 = load_model("llama-3.1-8b"), parse_cluster("h100-sxm:1")


def engine(lora: str | None, **more: int) -> Engine:
    return engine_of(LLAMA, H100, Deployment(lora=lora, **more))


def load(rate: float = 4.0, n: int = 150) -> Workload:
    prompts, outputs = lengths(n, 500, 100, 0.5, 0)
    return Workload(prompts, outputs, arrivals(n, rate, 1.0, 0))


def test_a_slot_by_hand_and_what_tensor_parallelism_leaves_of_it() -> None:
    """Llama-3.1-8B, rank 16: q k v 3 x 4096 + 6144, o 4096 + 4096, gate up 2 x 4096 + 28672, down 14336 + 4096."""
    sizes = (3 * 4096 + 6144) + 8192 + (2 * 4096 + 28672) + 18432
    assert slot_bytes(LLAMA, 16, 1, 1) == 32 * 2 * 16 * sizes
    cut = (3 * 4096 + 3072) + (2048 + 4096) + (2 * 4096 + 14336) + (7168 + 4096)
    assert slot_bytes(LLAMA, 16, 2, 1) == 32 * 2 * 16 * cut
    with_slots, plain = engine("adapters=9,rank=16,resident=3"), engine(None)
    assert with_slots.memory.weights - plain.memory.weights == pytest.approx(3 * slot_bytes(LLAMA, 16, 1, 1))
    assert with_slots.blocks < plain.blocks


def test_products_read_the_adapters_of_the_step_and_its_activations() -> None:
    """One slot: every token has it. A kernel at a byte per second is its bytes."""
    layer = LLAMA.layers[0]
    seconds = products_s(lambda size: size, layer, 4096, 1, Adapters(1, 16, 1), 10.0)
    weights = slot_bytes(LLAMA, 16, 1, 1) / 32
    fused_in, fused_out = 10 * 2 * 16 * (3 + 1 + 2 + 1), 10 * 2 * 16 * (3 + 1 + 2 + 1)
    moved = 10 * 2 * (4096 + 4096 + 4096 + 14336) + 10 * 2 * 2 * (6144 + 4096 + 28672 + 4096)
    assert seconds == pytest.approx(weights + fused_in + fused_out + moved)
    one, many = (products_s(lambda size: size, layer, 4096, 1, Adapters(64, 16, slots), 8.0) for slots in (1, 64))
    assert one < many < 8 * one


def test_slots_hold_no_more_than_they_have_and_give_up_the_one_used_longest_ago() -> None:
    slots = Slots(2, 7)
    slots.take(1)
    slots.take(2)
    assert not slots.admits(3)
    assert slots.admits(1)
    assert slots.waited() == 14
    slots.leave(1)
    slots.leave(2)
    slots.take(1)
    slots.take(3)  # in the place of 2
    assert slots.waited() == 7
    slots.leave(3)
    slots.take(2)
    assert (slots.loads, slots.waited()) == (4, 7)


def test_who_waits_for_a_slot_lets_others_pass_and_all_end() -> None:
    slots = Slots(1, 0)
    replica = Replica(plain_times(), Rules(), 2000, slots=slots)
    work = Workload(np.array([64] * 4), np.array([200, 50, 50, 50]), np.array([0, 1, 2, 3]) * 10**6)
    sent, refused = simulate(work, [replica], None, block_size=16, adapters=[0, 1, 0, 1])
    assert not refused
    assert sent[2].first_ns < sent[1].first_ns
    assert sent[1].scheduled_ns >= max(sent[0].last_ns, sent[2].last_ns) - 10**8
    assert slots.in_use == {}
    assert replica.pool.held == 0


def test_more_slots_never_load_more_and_adapters_cost_time() -> None:
    results = [serve_with(engine(f"adapters=24,rank=16,resident={slots}"), load()) for slots in (2, 6, 24)]
    loads = [one.adapter_loads or 0 for one in results]
    assert loads == sorted(loads, reverse=True)
    assert loads[-1] == 24
    assert {one.finished for one in results} == {150}
    plain = serve_with(engine(None), load())
    assert plain.adapter_loads is None
    assert "adapter_loads" not in plain.to_dict()
    assert results[-1].tpot is not None
    assert plain.tpot is not None
    assert results[-1].tpot.mean > plain.tpot.mean


def test_turns_of_a_session_ask_for_one_adapter() -> None:
    following = np.array([2, 3, 4, -1, -1])
    work = replace(load(n=5), turns=Turns(following, np.zeros(5, np.int64)))
    asked = asked_for(work, 1000)
    assert asked[0] == asked[2] == asked[4]
    assert asked[1] == asked[3]


def test_a_deployment_says_them_in_words() -> None:
    for name in ("lora", "kv_tiers"):
        with pytest.raises(SpecError, match=name):
            Deployment(**{name: 3})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "rank=16", "adapters=0,rank=1,resident=1", "adapters=1,rank=1,resident=1,x=1"])
def test_adapters_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="lora"):
        adapters_of(text)
    with pytest.raises(SpecError, match="lora"):
        engine_of(load_model("deepseek-v3"), parse_cluster("h200-sxm:8"), Deployment(tp=8, lora=SOME))
    with pytest.raises(SpecError, match="lora"):
        pools_of(LLAMA, H100, (1, Deployment(lora=SOME)), (1, Deployment()))
