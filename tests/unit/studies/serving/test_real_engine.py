"""The real engine: the tokens of transformers' Llama, whatever the policy, the chunks and the swaps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.extras

from windtunnel.real.serving.carry_out import Carrier  # noqa: E402
from windtunnel.real.serving.llama import Llama, Shape  # noqa: E402
from windtunnel.real.serving.prices import NODES, Step, fit_prices, times_of  # noqa: E402
from windtunnel.studies.serving.batching import ContinuousBatching  # noqa: E402
from windtunnel.studies.serving.batching.plan import Plan  # noqa: E402
from windtunnel.studies.serving.batching.skip_join import SkipJoinBatching  # noqa: E402
from windtunnel.studies.serving.loop import simulate  # noqa: E402
from windtunnel.studies.serving.replica import Rules, StepwiseReplica  # noqa: E402
from windtunnel.studies.serving.replica.sequence import Sequence  # noqa: E402
from windtunnel.studies.serving.workload.requests import Workload  # noqa: E402

SMALL = Shape(vocabulary=97, hidden=32, layers=2, heads=4, kv_heads=2, feed_forward=48)
BLOCK = 4


def _peer(model: Llama) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=SMALL.vocabulary, hidden_size=SMALL.hidden, num_hidden_layers=SMALL.layers,
        num_attention_heads=SMALL.heads, num_key_value_heads=SMALL.kv_heads, intermediate_size=SMALL.feed_forward,
        rms_norm_eps=1e-5, rope_theta=10_000.0, tie_word_embeddings=False, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    peer = transformers.LlamaForCausalLM(config).eval()
    missing = peer.load_state_dict(model.weights, strict=False)
    assert not missing.unexpected_keys
    assert not missing.missing_keys
    return peer


def _serve(policy: Any, rules: Rules, blocks: int, host: int) -> tuple[Carrier, StepwiseReplica]:
    draw = np.random.default_rng(3)
    # All are there at once, so that how long a real step takes decides nothing.
    load = Workload(draw.integers(1, 30, 8), draw.integers(2, 20, 8), np.zeros(8, np.int64))
    carrier = Carrier(Llama(SMALL, blocks, BLOCK, seed=1), blocks, policy, seed=5)
    price = fit_prices([Step(((n, 0),), (), 1e-3) for n in NODES] + [Step((), (8,) * n, 1e-3) for n in NODES])[0]
    replica = StepwiseReplica(times_of(price, 2), rules, blocks, carrier.policy, host, carrier)
    sent, _ = simulate(load, [replica], None, block_size=BLOCK)
    assert all(one.last_ns > 0 for one in sent)
    assert replica.pool.held == replica.host_pool.held == 0
    return carrier, replica


def test_every_policy_gives_the_tokens_of_transformers() -> None:
    chunked = Rules(max_num_seqs=4, token_budget=8, longest_chunk=8, block_size=BLOCK)
    whole = Rules(max_num_seqs=4, token_budget=64, longest_chunk=64, chunked=False, block_size=BLOCK)
    feedback = SkipJoinBatching(lambda n: 1000, batch=3, prompt_tokens=64, first_quantum_ns=50_000, host_blocks=60)
    calm, _ = _serve(ContinuousBatching(), chunked, 80, 0)
    short, replica = _serve(ContinuousBatching(), whole, 20, 0)
    assert replica.tally.preemptions > 0
    queued, _ = _serve(feedback, whole, 20, 60)
    assert queued.swapped_blocks > 0
    assert calm.tokens == short.tokens == queued.tokens
    peer = _peer(calm.model)
    draw = np.random.default_rng(3)
    prompts = draw.integers(1, 30, 8).tolist()
    with torch.inference_mode():
        for index, ids in calm.tokens.items():
            given = torch.tensor([ids[:-1]])
            wanted = peer(given).logits[0].argmax(-1).tolist()[prompts[index] - 1 :]
            assert ids[prompts[index] :] == wanted


def test_the_fit_finds_the_prices_that_made_the_steps() -> None:
    def cost(chunks: Any, contexts: Any) -> float:
        tokens = sum(n for n, _ in chunks) + len(contexts)
        pairs = sum(n * (past + n / 2) for n, past in chunks)
        return 1e-3 + 2e-5 * tokens + 1e-7 * pairs + 1e-4 * len(chunks) + 3e-7 * sum(contexts) + 2e-4 * bool(contexts)

    shapes = [(((n, past),), ()) for n in NODES for past in (0, 64, 200)]
    shapes += [((), (context,) * n) for n in NODES for context in (16, 100, 400)]
    shapes += [(((n, 0), (n, 32)), (50,) * 4) for n in NODES]
    prices, error = fit_prices([Step(chunks, contexts, cost(chunks, contexts)) for chunks, contexts in shapes])
    assert error < 1e-3
    times = times_of(prices, 1)
    assert times.decode(6).at(6 * 300) / 1024e9 == pytest.approx(cost((), (300,) * 6), rel=0.01)
    assert times.mixed(3, 300, [(48, 0)], 1) / 1024e9 == pytest.approx(cost(((48, 0),), (100,) * 3), rel=0.05)


def test_how_fast_the_machine_is_is_looked_at_in_a_short_run_too() -> None:
    looked: list[None] = []
    carrier = Carrier(Llama(SMALL, 4, BLOCK), 4, ContinuousBatching(), look=lambda: looked.append(None))
    one = Sequence(0, 3, 1, 0)
    one.blocks = 1
    carrier(Plan(chunks=[(one, 3)]))
    assert len(looked) == 1
