"""Tapes of plain PyTorch: what autograd keeps of each op and what its backward allocates, op by op as ATen does it.

Read off PyTorch 2.13 with `saved_tensors_hooks`, a dispatch mode and the profiler's memory events:

    linear        keeps its input; backward makes the weight's gradient, then the input's
    rms_norm      on a GPU one kernel, keeps its input and a number per row; on a CPU a chain in fp32 that keeps two
                  tensors of four bytes per element: the input (its copy in fp32 where it is bf16) and the normalised
    layer_norm    one kernel: keeps its input, two numbers per row
    rotary        keeps nothing but the tables; its chain holds up to 3.5 tensors
    attention     flash: keeps queries, keys, values, output and log-sum-exp; products (fp32, fewer heads for keys and
                  values, on a GPU): all three at the width of the queries, and the probabilities
    silu(g) * u   keeps g, silu(g) and u
    cross-entropy keeps log-softmax in fp32; its backward makes two more such tensors and casts to the logits' format
    experts       each keeps its rows' numbers, its rows, and what it gives, before and after that is weighed

The rules themselves are in `plain_rules` and `plain_expert_rules`, autograd's part in `plain_autograd`.
"""

from __future__ import annotations

from windtunnel.physics.model.operations import Operation
from windtunnel.studies.training.lowering.unrolled import unrolled, until_kept
from windtunnel.studies.training.memory.eager.autograd import Autograd, Style
from windtunnel.studies.training.memory.eager.dense_rules import rule_of
from windtunnel.studies.training.memory.forward_trace import Tape
from windtunnel.studies.training.memory.saved_tensors import INPUT, Keeping, Writer


def write_plain(
    operations: tuple[Operation, ...], input_bytes: float, keep: Keeping, style: Style, *,
    recompute: bool = False, offload: bool = False, later: bool = False, table_bytes: float = 0.0,
) -> Tape:  # fmt: skip
    """The tape of one block. `table_bytes`: of the embedding's gradient; `input_bytes` is then 0."""
    writer = Writer(keep, frozenset(), "bf16", 1)
    writer.size[INPUT], writer.holds[INPUT] = int(input_bytes), 1
    run = unrolled(tuple(op for op in operations if not op.backward_only))
    if recompute:
        if not offload:
            writer.hold(INPUT)  # the checkpoint
        first = Autograd(writer, style, later, table_bytes, keeping=False)
        output = first.forward(run, rule_of)
        forward, writer.events = writer.events, []
        if offload:
            writer.fetch(INPUT)
        writer.hold(INPUT)  # read once more
        again = Autograd(writer, style, later, table_bytes)
        writer.drop(again.forward(until_kept(run), rule_of))
        autograd = again
    else:
        autograd = Autograd(writer, style, later, table_bytes)
        output = autograd.forward(run, rule_of)
        saved = {slot for slot in autograd.saved_slots if slot != output}
        away = sorted(saved) if offload else []
        forward = writer.events + [(slot, 0) for slot in away]
        writer.events = [(slot, writer.size[slot]) for slot in away]
    incoming = writer.reserve(writer.size[output]) if output >= 0 else -1
    outgoing = autograd.backward(incoming)
    if recompute:
        writer.drop(INPUT)
    sizes = tuple(writer.size[slot] for slot in range(writer.slots))
    learning = tuple(writer.gradients), tuple(writer.learners)
    return Tape(tuple(forward), tuple(writer.events), sizes, output, incoming, outgoing, *learning)
