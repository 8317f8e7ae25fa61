"""Block times read off one chain are those read off every pair of blocks by itself."""

from __future__ import annotations

from typing import Any

import pytest

from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.planning.least.block_times import _in_one_chain, _pair_by_pair, calm
from windtunnel.studies.planning.least.blocks import _kept_by_pieces, blocks_of, kept_bytes, kinds_of, pairs_of
from windtunnel.studies.planning.oracle import checked, laid_out
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import Kind

JOB = {"global_batch": 64, "seq_len": 4096}


@pytest.mark.parametrize("phase", list(Kind))
@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("llama-3-8b", {"tp": 2}),
        ("llama-3-8b", {"tp": 4, "overlap_tp": False, "recompute": "selective:core_attention", "cp": 2}),
        ("llama-3-8b", {"tp": 1, "micro_batch": 2, "cuda_graphs": True, "cp": 2, "cp_kind": "ulysses"}),
        ("llama-3-8b", {"framework": "torchtitan", "zero_stage": 2, "pp": 2, "compile": True}),
        ("deepseek-v3", {"ep": 8, "tp": 2, "overlap_ep": True, "recompute": "selective:mlp"}),
        ("llama-4-maverick", {"ep": 4}),
    ],
)
def test_one_chain_is_every_pair(model: str, fields: dict[str, Any], phase: Kind) -> None:
    layout = laid_out(load_model(model), parse_cluster("h100-sxm:16"), checked({**JOB, **fields}))
    pairs = pairs_of(kinds_of(layout.model))
    pricer, own = calm(Pricer(layout)), blocks_of(layout)
    chain = _in_one_chain(pricer, own, pairs, phase)
    each = _pair_by_pair(pricer, own, [pair if phase is Kind.FORWARD else pair[::-1] for pair in pairs], phase)
    assert len(each.step) == len(pairs)
    if chain is None:  # a block that computes nothing in this phase
        assert phase is Kind.BACKWARD_WEIGHT
        return
    assert {pair: chain.step[pair] for pair in each.step} == each.step
    assert {kind: chain.lead[kind] for kind in each.lead} == each.lead
    assert {kind: chain.trail[kind] for kind in each.trail} == each.trail
    assert chain.busy == each.busy


@pytest.mark.parametrize("recompute", ["none", "full", "selective:core_attention", "selective:mlp,norms"])
@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("llama-3-8b", {"tp": 2}),
        ("llama-3-8b", {"tp": 4, "sequence_parallel": False, "zero_stage": 3}),
        ("gpt3-175b", {"tp": 8, "cp": 2, "framework": "nanotron"}),
        ("llama-3-8b", {"framework": "torchtitan", "tp": 4, "zero_stage": 3, "compile": True}),
        ("llama-3-8b", {"framework": "fsdp", "pp": 2, "zero_stage": 2}),
        ("deepseek-v3", {"ep": 8, "tp": 2, "precision": "fp8"}),
    ],
)
def test_what_a_layer_keeps_is_what_a_model_with_one_more_keeps(
    model: str, fields: dict[str, Any], recompute: str
) -> None:
    layout = laid_out(load_model(model), parse_cluster("h100-sxm:16"), checked({**JOB, **fields}))
    assert kept_bytes(layout, recompute, blocks_of(layout)) == _kept_by_pieces(layout, recompute)
