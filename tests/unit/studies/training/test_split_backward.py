"""Laws of a backward pass in two halves: tensors balance; what weight gradients are made of stays in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import Model, transformer
from windtunnel.studies.training.layout import Layout, resolve
from windtunnel.studies.training.lowering.model_chunks import Piece, pieces_of
from windtunnel.studies.training.lowering.shards.pipelined_shards import unmerged_chunks
from windtunnel.studies.training.memory.allocations import Passes
from windtunnel.studies.training.plan import Plan
from windtunnel.studies.training.schedules import NAMES, TRAITS, Kind, schedule

FRAMEWORKS = ("megatron", "nanotron", "torchtitan", "fsdp", "pytorch")
GRAPH = ("torchtitan", "fsdp", "pytorch")  # keep autograd's graph for the second half


def model(**changes: Any) -> Model:
    shape = {"hidden": 512, "layers": 8, "heads": 8, "vocab": 4096, "ffn": 2048, "family": "llama"} | changes
    return transformer(**shape)


def layout_of(framework: str, **plan: Any) -> Layout:
    fields = {"global_batch": 32, "seq_len": 1024, "pp": 4, "schedule": "zb-h1", "framework": framework} | plan
    return resolve(model(), parse_cluster("h100-sxm:8"), Plan(**fields))


def pieces(framework: str, **plan: Any) -> tuple[Piece, ...]:
    return pieces_of(layout_of(framework, **plan))


def halves(passes: Passes) -> tuple[Any, Any]:
    assert passes.backward_input is not None
    assert passes.backward_weight is not None
    return passes.backward_input, passes.backward_weight


def test_schedules_that_split_are_those_that_say_so() -> None:
    split = {name for name in NAMES if (schedule(name, 4, 8, 2 if name == "interleaved" else 1).kind == 2).any()}
    assert split == {name for name, traits in TRAITS.items() if traits.splits_backward}
    assert Kind.BACKWARD_INPUT == 2


@pytest.mark.parametrize("plan", [{}, {"recompute": "full"}, {"zero_stage": 0}, {"schedule": "zb-v"}], ids=str)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_tensor_is_freed_once(framework: str, plan: dict[str, Any]) -> None:
    for number, piece in enumerate(pieces(framework, **plan)):
        alive: dict[int, int] = {}
        for slot, size in np.concatenate((piece.passes.forward, *halves(piece.passes))).tolist():
            if size > 0:
                assert slot not in alive
                alive[slot] = size
            else:
                assert alive.pop(slot) == -size
        # Of torch.distributed.pipelining the gradient of what was received stays until the next step.
        stays = [512 * 1024 * 2] if framework in GRAPH and number > 0 else []
        assert list(alive.values()) in ([stays, []] if framework == "pytorch" else [stays])  # which may add in place


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_both_halves_leave_what_the_whole_leaves(framework: str) -> None:
    for piece in pieces(framework):
        inputs, weights = halves(piece.passes)
        assert inputs[:, 1].sum() + weights[:, 1].sum() == piece.passes.backward[:, 1].sum()
        whole = [tuple(one) for one in piece.passes.backward.tolist() if one[1] > 0]
        parts = [tuple(one) for one in np.concatenate((inputs, weights)).tolist() if one[1] > 0]
        assert sorted(parts) == sorted(whole)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_weight_gradients_are_made_in_the_second_half_only(framework: str) -> None:
    """By their sizes: no activation of this model is as large as one of these matrices."""
    layout = layout_of(framework, micro_batch=1, seq_len=80, global_batch=32)
    for piece in pieces_of(layout)[1:-1]:
        matrices = {2 * 512 * 512, 2 * 512 * 2048, 2 * 512 * 4096, 2 * 512 * 1536}
        inputs, weights = halves(piece.passes)
        assert not matrices & set(inputs[:, 1].tolist())
        made = matrices & set(weights[:, 1].tolist())
        assert made  # GEMMs of Megatron add to a buffer: something of that size stands in


def between(piece: Piece) -> int:
    """What stays from one half to the other."""
    return piece.passes.load(Kind.FORWARD).adds + piece.passes.load(Kind.BACKWARD_INPUT).adds


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_inputs_and_output_gradients_of_linear_layers_stay_in_between(framework: str) -> None:
    layout = layout_of(framework)
    piece = pieces_of(layout)[1]
    linear = [op for block in piece.blocks for op in block.operations if op.kind == "gemm"]
    gradients = sum(op.output_bytes for op in linear)
    least = gradients if framework in GRAPH else 0.5 * gradients
    assert between(piece) >= least + sum(op.shape[0] * op.shape[2] * 2 for op in linear if op.name == "mlp_down")
    saved = piece.passes.saved_bytes
    if framework in GRAPH:  # and everything else that was saved
        assert between(piece) >= saved + gradients * 0.5
    else:  # attention's tensors and norms' inputs are gone
        assert between(piece) < saved + gradients


def test_a_graph_keeps_more_than_its_linear_layers_need() -> None:
    assert between(pieces("torchtitan")[1]) > between(pieces("megatron")[1])


def test_the_first_stage_of_torch_does_everything_in_the_second_half() -> None:
    first = pieces("torchtitan")[0].passes
    inputs, weights = halves(first)
    assert not len(inputs)
    assert np.array_equal(weights, first.backward)


def test_weight_gradients_lie_there_until_the_next_first_half() -> None:
    for name in (name for name in NAMES if TRAITS[name].splits_backward):
        table = schedule(name, 4, 8)
        for rank in range(4):
            there = unmerged_chunks(table, rank)
            window = slice(int(table.rank_offset[rank]), int(table.rank_offset[rank + 1]))
            pending = set()
            for place, (kind, chunk) in enumerate(zip(table.kind[window], table.chunk[window], strict=True)):
                assert set(np.flatnonzero(there[place]).tolist()) == pending, (name, rank, place)
                if kind == Kind.BACKWARD_WEIGHT:
                    pending.add(int(chunk))
                elif kind in (Kind.BACKWARD_INPUT, Kind.BACKWARD):
                    pending.discard(int(chunk))
