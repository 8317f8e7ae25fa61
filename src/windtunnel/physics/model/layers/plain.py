"""The ops of a layer as plain PyTorch runs them: one GEMM per projection, experts in a Python loop, nothing fused.

As `model/layers/layer.py`, but every op also says whose outputs it reads, because what autograd keeps and when it
adds gradients follows from that. A tensor with several readers gets a gradient from each; adding them up is an op of
its own that only the backward pass runs (`Operation.backward_only`).

A mixture of experts is the loop that one writes by hand: softmax and top-k of the router's scores, and per expert
`index_select`, the feed-forward, a product with the chosen scores and `index_add_`.
"""

from __future__ import annotations

from dataclasses import replace

from windtunnel.errors import LayoutError
from windtunnel.physics.model.architecture import Attention, FeedForward, Layer, Model
from windtunnel.physics.model.layers.attention import attention_operations
from windtunnel.physics.model.layers.layer import embedding_operations, head_operations
from windtunnel.physics.model.layers.parts import activate, linear, norm_layer, product, residual_add
from windtunnel.physics.model.mixers import Compressed, Indexed, Recurrent
from windtunnel.physics.model.operations import Operation, Shard, Timed

# The gradient of `index_select` is a zeroed copy of all rows before it is added to the others': one of three tensors
# that adding moves.
ZEROED = 1.0 / 3.0
# Tensors that multiplying rows with scores moves, over the three that adding two tensors does: y and the product; and
# backward the gradient times the scores, the gradient times y, and the sum of that along a row.
WEIGH_FORWARD, WEIGH_BACKWARD = 2.0 / 3.0, 2.0
INDEX_CALLS = 5  # small calls per expert: comparison, `where`, and picking scores, in each direction


def plain_layer_operations(layer: Layer, model: Model, shard: Shard, load: float = 1.0) -> tuple[Operation, ...]:
    """The ops of one layer in the order of its `forward`; `load` as in `layer_operations.layer_operations`."""
    first = _learned(norm_layer("norm_1", model, shard), model, "")
    attention = _plain_attention(layer.attention, model, shard)
    middle = _read(residual_add("residual_1", model, shard), "", "out")
    split = layer.norms > 1 and not layer.parallel_block
    normed = "norm_2" if split else "norm_1"
    block = _plain_feed_forward(layer.feed_forward, model, shard, normed, load)
    last = _read(residual_add("residual_2", model, shard), "residual_1", *_outputs(layer.feed_forward))
    ops = [first, *attention, middle]
    if split:
        ops.append(_learned(norm_layer("norm_2", model, shard), model, "residual_1"))
    return _with_sums((*ops, *block, last))


def plain_embedding_operations(model: Model, shard: Shard) -> tuple[Operation, ...]:
    """Token look-up. The gradient of the table is as large as the table, whatever the number of tokens."""
    (lookup,) = embedding_operations(model, shard)
    table = model.vocab_size * model.hidden_size
    backward_bytes = lookup.backward_bytes + shard.activation_bytes * table
    # Tied, the output matrix learns it.
    return (replace(lookup, backward_bytes=backward_bytes, weight_elements=0.0 if model.tied_embeddings else table),)


def plain_head_operations(model: Model, shard: Shard) -> tuple[Operation, ...]:
    """Final norm, output matrix, and cross-entropy on fp32 logits."""
    norm, head, loss = head_operations(model, shard, model.vocab_size)
    return (_learned(norm, model, ""), _read(head, "final_norm"), _read(loss, "head"))


def _read(op: Operation, *reads: str) -> Operation:
    return replace(op, reads=reads)


def _learned(op: Operation, model: Model, *reads: str) -> Operation:
    """A norm, with the parameters that it learns."""
    return replace(op, reads=reads, weight_elements=model.norm_parameters)


def _with_sums(ops: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Behind each op with several readers, the sum of the gradients that they send back.

    A residual's sum belongs to the residual already, and what an expert's loop adds to each other is counted there.
    """
    operations: list[Operation] = []
    for op in ops:
        operations.append(op)
        readers = sum(op.name in other.reads for other in ops)
        extra = readers - 1
        if op.part == "residual" or extra < 1 or op.repeats:
            continue
        rounds = max((other.repeats for other in ops if op.name in other.reads), default=0)
        times = float(extra) if not rounds else rounds * (1.0 + ZEROED)
        rows, width = _rows(op)
        operations.append(_sum(f"{op.name} sum", rows, width, times, op.output_bytes))
    return tuple(operations)


def _rows(op: Operation) -> tuple[float, float]:
    if op.timed is not None:
        return op.timed.rows, op.timed.width
    return op.shape[0], op.shape[1]


def _sum(name: str, rows: float, width: float, times: float, output_bytes: float) -> Operation:
    return Operation(
        name,
        "residual",
        "memory",
        backward_bytes=3.0 * times * output_bytes,
        kernels=max(1, round(times)),
        timed=Timed("add", rows, width, 0.0, times),
    )


def _plain_attention(attention: Attention, model: Model, shard: Shard) -> list[Operation]:
    if isinstance(attention, Recurrent | Indexed | Compressed):
        raise LayoutError(f"{model.name} in plain PyTorch", "its mixers have fused kernels only: use megatron or fsdp2")
    if attention.kind == "mla":
        return _latent_attention(attention, model, shard)
    t, h = shard.tokens, model.hidden_size
    heads, kv_heads, d = attention.heads, attention.kv_heads, attention.head_dim
    ops: list[Operation] = []
    names: list[str] = []
    for name, count in (("q", heads), ("k", kv_heads)):
        ops.append(_read(linear(name, "attention", t, count * d, h, shard, side="none"), "norm_1"))
        for part, wanted in (("norm", attention.qk_norm != "none"), ("rope", attention.position == "rope")):
            if wanted:
                ops.append(_per_head(f"{name}_{part}", part, t * count, d, shard, name))
                name = f"{name}_{part}"
        names.append(name)
    values = linear("v", "attention", t, kv_heads * attention.value_head_dim, h, shard, side="none")
    ops.append(_read(values, "norm_1"))
    core = next(op for op in attention_operations(attention, model, shard) if op.kind == "attention")
    ops.append(_read(core, *names, "v"))
    out = linear("out", "attention", t, h, heads * attention.value_head_dim, shard, side="none")
    return [*ops, _read(out, "core_attention")]


def _per_head(name: str, part: str, rows: float, width: float, shard: Shard, source: str) -> Operation:
    """Rotary embedding or norm of queries or keys."""
    w, size = shard.activation_bytes, rows * width
    fused = shard.fused or (part == "norm" and shard.fused_norms)
    passes = 2.0 * w if fused else 10.0 * w if part == "rope" else 15.0 * w
    return Operation(
        name,
        "attention",
        "memory",
        forward_bytes=passes * size,
        backward_bytes=1.5 * passes * size,
        output_bytes=size * w,
        kernels=1 if fused else 6,
        weight_elements=width if part == "norm" else 0.0,
        timed=Timed("rope" if part == "rope" else "rms_norm", rows, width),
        reads=(source,),
    )


def _latent_attention(attention: Attention, model: Model, shard: Shard) -> list[Operation]:
    """Multi-head latent attention: already one GEMM per projection."""
    ops = []
    before = {"q_down": "norm_1", "q": "norm_1", "q_up": "q_down", "kv_down": "norm_1", "kv_up": "kv_down"}
    for op in attention_operations(attention, model, shard):
        query = "q_up" if attention.q_lora_rank else "q"
        if op.name in before:
            op = _read(op, before[op.name])
        elif op.name == "rope":
            op = _read(op, query)
        elif op.kind == "attention":
            op = _read(op, "rope" if attention.position == "rope" else query, "kv_up")
        elif op.name == "out":
            op = _read(op, "core_attention")
        ops.append(op)
    return ops


def _outputs(block: FeedForward) -> list[str]:
    """Ops whose outputs the second residual adds."""
    if block.kind == "dense":
        return ["mlp_down"]
    return ["combine", "shared_down"] if block.shared_size else ["combine"]


def _plain_feed_forward(
    block: FeedForward, model: Model, shard: Shard, normed: str, load: float
) -> list[Operation]:  # fmt: skip
    if block.kind == "dense":
        return _dense("mlp", block.size, block, model, shard, normed)
    ops = _loop(block, model, shard, normed, load)
    if block.shared_size:
        ops += _dense("shared", block.shared_size, block, model, shard, normed)
    return ops


def _dense(
    prefix: str, size: int, block: FeedForward, model: Model, shard: Shard, normed: str
) -> list[Operation]:  # fmt: skip
    t, h = shard.tokens, model.hidden_size
    names = [f"{prefix}_gate", f"{prefix}_up"] if block.gated else [f"{prefix}_up"]
    ops = [_read(linear(name, "mlp", t, size, h, shard, side="none"), normed) for name in names]
    activation = "activation" if prefix == "mlp" else f"{prefix}_activation"
    ops.append(_read(activate(activation, "activation", t, size, block, shard), *names))
    return [*ops, _read(linear(f"{prefix}_down", "mlp", t, h, size, shard, side="none"), activation)]


def _loop(block: FeedForward, model: Model, shard: Shard, normed: str, load: float) -> list[Operation]:
    """Router, then each expert in turn."""
    t, h, w, n, top = shard.tokens, model.hidden_size, shard.activation_bytes, block.experts, block.experts_per_token
    rows = t * top * load  # of all experts
    names = ["experts_gate", "experts_up"] if block.gated else ["experts_up"]
    router = linear("router", "router", t, n, h, shard, side="none")
    choose = Operation(
        "choose",
        "router",
        "memory",
        forward_bytes=t * n * (w + 12.0),
        backward_bytes=t * n * (w + 16.0),
        output_bytes=t * top * w,
        kernels=8,
        timed=Timed("softmax", t, n),
        reads=("router",),
    )
    index = Operation(
        "index",
        "moe_permute",
        "memory",
        # Per expert: compare all choices, find its own; backward a zeroed table of scores.
        forward_bytes=n * t * top * 18.0,
        backward_bytes=n * t * top * 4.0 * w,
        kernels=INDEX_CALLS * n,
    )
    gather = _per_expert("permute", n, (2.0, 2.0), w * rows * h, Timed("gather_rows", rows / n, h, n, n), normed)
    ops = [_read(router, normed), choose, index, gather]
    gemms = [_expert_gemm(name, n, rows / n, block.size, h, shard, "permute") for name in names]
    ops += [gemms[0], *(replace(op, new_shapes=0) for op in gemms[1:])]  # gate and up have the same shape
    if len(names) > 1:
        ops.append(_sum("permute sum", rows / n, h, float(n), rows * h * w / n))
    activation = activate("expert_activation", "moe_activation", rows, block.size, block, shard)
    assert activation.timed is not None
    each = activation.timed._replace(rows=rows / n, forward=float(n), backward=float(n))
    ops.append(replace(activation, reads=tuple(names), repeats=n, kernels=activation.kernels * n, timed=each))
    ops.append(_expert_gemm("experts_down", n, rows / n, h, block.size, shard, "expert_activation"))
    added = Timed("add", rows / n, h, n * WEIGH_FORWARD, n * WEIGH_BACKWARD)
    weigh = _per_expert("weigh", n, (2.0, 6.0), w * rows * h, added, "experts_down", "choose")
    scattered = Timed("scatter_add_rows", rows / n, h, n, n)
    combine = _per_expert("combine", n, (3.0, 2.0), w * rows * h, scattered, "weigh")
    return [*ops, weigh, replace(combine, output_bytes=t * h * w)]


def _per_expert(
    name: str, n: int, passes: tuple[float, float], bytes_: float, timed: Timed, *reads: str
) -> Operation:  # fmt: skip
    """One kernel for each of `n` experts: all rows, of `bytes_`, so many times through memory, forward and backward."""
    forward, backward = passes
    return Operation(
        name,
        "moe_permute",
        "memory",
        forward_bytes=forward * bytes_,
        backward_bytes=backward * bytes_,
        output_bytes=bytes_,
        kernels=n,
        timed=timed,
        reads=reads,
        repeats=n,
    )


def _expert_gemm(name: str, n: int, m: float, out: float, k: float, shard: Shard, source: str) -> Operation:
    gemm = product(name, "mlp", (n, m, out, k), shard.activation_bytes)
    return replace(gemm, kernels=n, reads=(source,), new_shapes=n, repeats=n, apart=True)
