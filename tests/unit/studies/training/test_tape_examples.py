"""What one layer holds, tensor by tensor, by hand: sizes are shapes alone, so no constant enters."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from every_case import over

from windtunnel.physics.model import read_config, transformer
from windtunnel.physics.model.layers.layer import head_operations, layer_operations
from windtunnel.physics.model.operations import KEPT_BYTES, Operation, Shard
from windtunnel.studies.training.memory.forward_trace import Tape, write
from windtunnel.studies.training.memory.pass_trace import Stringing, Unit, string_together
from windtunnel.studies.training.memory.saved_tensors import Keeping, WeightGradient, kept_products

H, HEADS, KV, FFN, S, B, W = 24, 6, 3, 40, 16, 2, 2
D, T = H // HEADS, S * B
MODEL = transformer(hidden=H, layers=1, heads=HEADS, kv_heads=KV, vocab=100, ffn=FFN, name="small")
KEEP = Keeping(
    gathered_inputs=False, gathers_again=False, triton_norms=False, weight_gradients=False, stand_in=False,
    buckets=False, updated_copy=False, root_gathered=False, expandable=False, fsdp2=False, torch_pipelining=False,
    loss={"work": [4], "kept": [2], "backward": [4], "logits_kept": False, "in_place": False},
)  # fmt: skip
X = T * H * W  # the residual stream


def layer(**shard: Any) -> tuple[Operation, ...]:
    return layer_operations(MODEL.layers[0], MODEL, Shard(**{"batch": B, "seq_len": S, **shard}))


def tape(keep: Keeping = KEEP, how: dict[str, Any] | None = None, **shard: Any) -> Tape:
    return write(layer(**shard), X / shard.get("tp", 1), keep, tp=shard.get("tp", 1), **(how or {}))


def live(events: tuple[tuple[int, int], ...], start: int = 0) -> list[int]:
    """Bytes that are there after each event; `start`: before the first."""
    sizes: dict[int, int] = {}
    now, found = start, []
    known: dict[int, int] = {}
    for slot, size in events:
        if size:
            sizes[slot] = known[slot] = size
            now += size
        else:
            now -= sizes.pop(slot, 0)
        found.append(now)
    return found


def left(found: Tape) -> int:
    """Bytes that the forward pass leaves: what is kept, and the output."""
    return live(found.forward)[-1]


QKV = T * (HEADS + 2 * KV) * D * W
CORE = T * HEADS * D * W
LSE = 4 * T * HEADS
UP, ACT = T * 2 * FFN * W, T * FFN * W


def test_a_layer_leaves_what_its_backward_reads_and_its_output() -> None:
    # norm; queries, keys, values; what attention gives and its sums; the stream; norm; gate and up; activation; output.
    assert left(tape()) == X + QKV + CORE + LSE + X + X + UP + ACT + X
    assert tape().sizes[0] == X  # the input is the block's before it


def test_a_checkpoint_leaves_the_output_alone_and_makes_the_rest_again() -> None:
    found = tape(how={"recompute": True})
    assert left(found) == X
    again = live(found.backward)
    assert max(again) >= X + QKV + CORE + LSE + X + X + UP + ACT


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        ({"core_attention"}, X + QKV + CORE + X + X + UP + ACT + X),  # the sums are made again
        ({"activation"}, X + QKV + CORE + LSE + X + X + UP + X),
        ({"norms"}, QKV + CORE + LSE + X + UP + ACT + X),
    ],
)
def test_selective_recomputation_leaves_out_its_parts(parts: set[str], kept: int) -> None:
    assert left(tape(how={"parts": frozenset(parts)})) == kept


def test_scores_that_are_written_are_kept_with_softmax_mask_and_dropout() -> None:
    scores = B * HEADS * S * S
    masks = 2 * T * H  # of the two residuals' dropout, a byte each
    # Softmax and dropped scores in 16 bits, the mask in 8: 5 a s^2 b.
    assert left(tape(attention_impl="unfused")) == X + QKV + 5 * scores + CORE + X + X + UP + ACT + X + masks


def test_attention_by_plain_products_keeps_wide_copies_in_fp32_and_scores() -> None:
    wide = 4 * B * HEADS * S
    assert left(tape(fused_groups=False)) == X + wide * (2 * D + D) + wide * S + CORE + X + X + UP + ACT + X
    back = live(tape(fused_groups=False).backward)
    assert max(back) >= wide * D + 2 * wide * S  # values' gradients, those of probabilities and of scores at once


def test_sequence_parallel_ranks_keep_their_part_or_the_gathered_whole() -> None:
    x = X // 2
    own = QKV // 2 + CORE // 2 + LSE // 2 + UP // 2 + ACT // 2
    parts = left(tape(tp=2, sequence_parallel=True))
    assert parts == x + own + x + x + x
    whole = left(tape(replace(KEEP, gathered_inputs=True), tp=2, sequence_parallel=True))
    assert whole == parts + 2 * (X - x)  # the gathered inputs of two products in place of their parts
    again = live(tape(tp=2, sequence_parallel=True).backward)
    kept = live(tape(replace(KEEP, gathered_inputs=True), tp=2, sequence_parallel=True).backward)
    assert max(again) > max(kept) - 2 * (X - x)  # gathered once more for the weight's gradient


def test_low_precision_keeps_copies_of_products_inputs() -> None:
    found = write(layer(precision="fp8"), X, KEEP, precision="fp8")
    kept = KEPT_BYTES["fp8"]
    inputs = [int(size * kept) for size in (T * H, T * HEADS * D, T * H, T * FFN)]
    # Attention's own tensors and what element-wise ops read stay in 16 bits.
    assert left(found) == sum(inputs) + QKV + CORE + LSE + X + UP + X


def test_weight_gradients_are_there_until_somebody_takes_them() -> None:
    found = tape(replace(KEEP, weight_gradients=True))
    weights = [H * (HEADS + 2 * KV) * D, HEADS * D * H, 2 * FFN * H, FFN * H]
    made = [found.sizes[slot] for slot in found.weights]
    assert sorted(made) == sorted(W * weight for weight in weights)
    stood = tape(replace(KEEP, stand_in=True))
    assert not stood.weights
    assert len(found.learners) == len(stood.learners) == 6  # four products and two norms


def test_gradients_go_back_through_each_op_at_its_input_size() -> None:
    """Beyond what was kept: the incoming gradient, and at each op its input's beside its output's."""
    found = tape()
    freed = [slot for slot, size in found.backward if not size]
    assert len(freed) == len(set(freed))
    made = [size for _, size in found.backward if size]
    # In turn: act, up, norm_2's output; the sum with the residual; then attention's side likewise.
    assert made[:2] == [ACT, UP]
    assert X in made
    assert made.count(QKV) >= 1
    assert 2 * CORE in made  # flash attention adds up the queries' gradient in fp32
    assert found.sizes[found.incoming] == X
    assert found.sizes[found.outgoing] == X


def test_the_loss_keeps_and_makes_what_its_rules_say() -> None:
    ops = head_operations(MODEL, Shard(B, S), 128)
    logits = T * 128
    found = write(ops, X, KEEP)
    kept = live(found.forward)[-1]
    assert kept >= X + 2 * logits  # the head's input; what the loss keeps
    assert max(live(found.forward)) >= kept + 4 * logits - 2 * logits
    made = [size for _, size in found.backward if size]
    assert 4 * logits in made
    other = replace(KEEP, loss={**KEEP.loss, "kept": [4], "backward": [8]})
    assert live(write(ops, X, other).forward)[-1] == kept + 2 * logits
    assert 8 * logits in [size for _, size in write(ops, X, other).backward if size]


TYPES: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "physics" / "model" / "derived_by_transformers.json").read_text()
)


@pytest.mark.parametrize("how", [{}, {"recompute": True}], ids=["kept", "recomputed"])
@over("kind", TYPES)
def test_a_layer_of_every_model_type_gives_back_all_but_its_ends(kind: str, how: dict[str, Any]) -> None:
    """Forward and backward, the output's gradient given: what is left is the input's gradient and those of weights."""
    model = read_config(TYPES[kind]["config"])
    x = float(T * model.hidden_size * W)
    for kept, _ in model.distinct_layers():
        found = write(layer_operations(kept, model, Shard(batch=B, seq_len=S)), x, KEEP, **how)
        sizes: dict[int, int] = {found.incoming: 1}
        for slot, size in (*found.forward, *found.backward):
            if size:
                sizes[slot] = size
            else:
                sizes.pop(slot, None)
        assert set(sizes) <= {found.outgoing, found.incoming, found.output, *found.weights}


def test_per_op_recomputation_keeps_every_other_matrix_of_a_layer_with_queries_keys_and_values_apart() -> None:
    """Of q, k, v, out, gate, up, down: the first, third, fifth and, without a compiler, the last."""
    q, k, v = HEADS * D, KV * D, KV * D
    kept = {"qkv": (q + v) / (q + k + v), "out": 0.0, "mlp_up": 0.5, "mlp_down": 1.0}
    assert kept_products(layer(), compiled=False) == kept
    assert kept_products(layer(), compiled=True) == {**kept, "mlp_down": 0.0}


def backward_of(*units: Unit, **how: bool) -> list[tuple[int, int]]:
    """Events of a piece's backward pass."""
    events: list[tuple[int, int]] = string_together(list(units), 8, Stringing(**how)).backward.tolist()
    return [(int(slot), int(size)) for slot, size in events]


# Slots: input, output, gradient of the output, that of the input, two that are made and freed one after the other.
BLOCK = Tape(((1, 8),), ((4, 3), (4, 0), (5, 7), (5, 0), (3, 8), (1, 0), (2, 0)), (8, 8, 8, 8, 3, 7), 1, 2, 3, ())
LEARNS = (WeightGradient(2, -1, -1, (), 2),)  # from the third event on


def test_parameters_are_gathered_before_a_blocks_first_gradient_and_behind_a_loss() -> None:
    block = backward_of(Unit(replace(BLOCK, learners=LEARNS), gathered=100))
    assert [size for _, size in block] == [8, 100, 3, -3, 7, -7, 8, -8, -8, -100, -8]
    head = replace(BLOCK, forward=(), backward=BLOCK.backward[:5], output=-1, incoming=-1, learners=LEARNS)
    assert [size for _, size in backward_of(Unit(head, gathered=100))] == [3, -3, 100, 7, -7, 8, -100, -8]


def test_the_flat_buffer_of_the_last_block_is_made_first_and_each_others_while_the_one_behind_it_goes_back() -> None:
    units = [Unit(BLOCK, gathered=100 + at, flat=10 + at) for at in range(3)]
    sizes = [size for _, size in backward_of(*units, fsdp2=True) if abs(size) > 8]
    # Into the flat buffer, copied out of it, the next one's meanwhile; then the block's parameters go.
    assert sizes == [12, 102, -12, 11, -102, 101, -11, 10, -101, 100, -10, -100]
