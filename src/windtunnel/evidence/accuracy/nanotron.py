"""How nanotron cuts a model into pipeline stages, and when it cannot.

Blocks in order: embedding, layers, final norm, head, cast, loss. A layer costs 4 a d h + 3 f h, the head V h, the rest
nothing. Rank r is filled until the cumulative cost reaches (r + 1) / p of the whole; then the next rank begins. A rank
that gets no block has no parameters, and the run dies at start. Of 130 runs of the Ultra-Scale sweep where this rule
leaves a rank empty, 128 are recorded as crashed.

Source: huggingface/nanotron, `src/nanotron/models/base.py`, `build_model` (rule only), but for a tie: there the cost
has to be more, and the sweep's runs do not look like it. Its 1.3B model ties, as its head costs exactly four of its
layers. Cut into 10 + 6 and 5 + 5 + 5 + 1 layers, not 11 + 5 and 6 + 5 + 5 + 0, its 72 runs in a pipeline of four (with
levels A and B) are 6 % off for 15, and the memory of its first rank as much as that of the other two models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.errors import LayoutError

if TYPE_CHECKING:
    from windtunnel.physics.model import Model


def layers_per_stage(model: Model, pp: int) -> tuple[int, ...]:
    """Transformer layers on each pipeline rank. Raises LayoutError where a rank would hold no block at all."""
    hidden = model.hidden_size
    costs = [0]
    for layer in model.layers:
        attention, block = layer.attention, layer.feed_forward
        costs.append(4 * attention.heads * attention.head_dim * hidden + 3 * block.size * hidden)
    costs += [0, model.vocab_size * hidden, 0, 0]
    whole, passed, rank = sum(costs), 0, 0
    blocks, layers = [0] * pp, [0] * pp
    for position, cost in enumerate(costs):
        passed += cost
        blocks[rank] += 1
        layers[rank] += 1 <= position <= model.n_layers
        # In whole numbers: passed / whole >= (rank + 1) / pp
        if passed * pp >= whole * (rank + 1) and rank + 1 < pp:
            rank += 1
    empty = [index for index, count in enumerate(blocks) if not count]
    if empty:
        raise LayoutError(
            f"nanotron leaves pipeline rank {empty[0]} of {pp} without any block of {model.name}",
            f"use pp below {pp}",
        )
    return tuple(layers)
