"""Naive equals fast: a pass in which equal blocks are copied is, bit by bit, the pass with every block added.

Copied are blocks of the pass itself, and those of the step's other passes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.training import Plan
from windtunnel.studies.training.layout import resolve
from windtunnel.studies.training.lowering import pass_lowering
from windtunnel.studies.training.lowering.model_chunks import pieces_of
from windtunnel.studies.training.lowering.pass_lowering import build_segment
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import Kind

PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("llama-3-8b", {"tp": 2, "overlap_tp": True, "cuda_graphs": True}),
    "uneven": ("llama-3-8b", {"tp": 2, "pp": 2, "layers_per_stage": (17, 15), "recompute": "full:3"}),
    "sharded": ("llama-3-8b", {"framework": "torchtitan", "zero_stage": 3, "shard_group": 8, "tp": 2}),
    "sharded, nothing overlaps": (
        "llama-3-8b",
        {"framework": "fsdp", "zero_stage": 3, "overlap_param_gather": False, "overlap_grad_reduce": False},
    ),
    "offloaded": ("llama-3-8b", {"offload_activations": 5, "zero_stage": 2}),
    "checkpoints offloaded": ("llama-3-8b", {"offload_activations": 5, "recompute": "full"}),
    "offloaded in short stages": ("llama-3-8b", {"pp": 4, "virtual_stages": 4, "offload_activations": 5}),
    "ring": ("llama-3-8b", {"tp": 2, "cp": 4, "recompute": "selective:core_attention"}),
    "mixture": ("mixtral-8x7b", {"ep": 8, "pp": 2}),
    "two kinds of layer": ("deepseek-v3", {"ep": 16, "zero_stage": 3, "recompute": "full"}),
    "DualPipe": ("deepseek-v3", {"ep": 8, "pp": 4, "schedule": "dualpipe", "layers_per_stage": (16, 15, 15, 15)}),
    "halves": ("llama-3-8b", {"tp": 2, "pp": 2, "schedule": "zb-h1"}),
}


@pytest.mark.parametrize("name", PLANS)
def test_copied_blocks_are_the_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, pieces, phases = _passes(name)
    copied: list[int] = []
    repeat = pass_lowering.PassBuilder.repeat

    def counted(self: pass_lowering.PassBuilder, since: tuple[int, ...], times: int, blocks: int) -> int:
        copied.append(times)
        return repeat(self, since, times, blocks)

    monkeypatch.setattr(pass_lowering.PassBuilder, "repeat", counted)
    fast = [_built(layout, piece, phase) for piece in pieces for phase in phases]
    assert sum(copied) >= model_layers(layout) // 4, "too few blocks were copied for this to be a test"
    monkeypatch.setattr(pass_lowering, "_alike", lambda order, number: 0)
    naive = [_built(layout, piece, phase) for piece in pieces for phase in phases]
    for one, other in zip(fast, naive, strict=True):
        _equal(one, other)


@pytest.mark.parametrize("name", PLANS)
def test_blocks_copied_from_other_passes_are_the_blocks(name: str) -> None:
    layout, pieces, phases = _passes(name)
    pricer, stretches = Pricer(layout), pass_lowering.Stretches()
    for piece in pieces:
        for phase in phases:
            alone = build_segment(pricer, piece.blocks, phase)
            _equal(_fields(build_segment(pricer, piece.blocks, phase, stretches=stretches)), _fields(alone))
    assert stretches or layout.gathers_in_passes, "no block could be copied"


def _passes(name: str) -> tuple[Any, list[Any], list[Kind]]:
    model, fields = PLANS[name]
    cluster = parse_cluster("h100-sxm:64")
    layout = resolve(load_model(model), cluster, Plan(global_batch=64, seq_len=4096, micro_batch=1, **fields))
    pieces = list({piece.key: piece for piece in pieces_of(layout)}.values())
    return layout, pieces, list(Kind) if layout.schedule == "zb-h1" else [Kind.FORWARD, Kind.BACKWARD]


def _equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for field, value in one.items():
        np.testing.assert_array_equal(value, other[field], err_msg=field, strict=isinstance(value, np.ndarray))


def model_layers(layout: Any) -> int:
    return len(layout.virtual_layers[0])


def _built(layout: Any, piece: Any, phase: Kind) -> dict[str, Any]:
    """All of a pass, and the price of each kernel and transfer in it."""
    noted: list[Any] = []
    return _fields(build_segment(Pricer(layout), piece.blocks, phase, noted)) | {"noted": repr(noted)}


def _fields(segment: pass_lowering.Segment) -> dict[str, Any]:
    fields = {field.name: getattr(segment, field.name) for field in dataclasses.fields(segment)}
    graph = fields.pop("graph")
    fields |= {f"graph.{field.name}": getattr(graph, field.name) for field in dataclasses.fields(graph)}
    return fields
