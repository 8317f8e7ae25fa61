"""Where a compiled graph waits for its collectives: at once.

What runs op by op hands out a tensor that waits when it is read. What PyTorch traces has the wait right behind the
collective (`_functional_collectives._maybe_wrap_tensor`), and Inductor leaves it there, unless
`reorder_for_compute_comm_overlap` is set. So nothing of the graph runs beside a collective of its own.
"""

from __future__ import annotations

from dataclasses import replace

from windtunnel.studies.programs.compiler.rewriting import rewritten
from windtunnel.studies.programs.program import Op, RankProgram

FUNCTIONAL = "_c10d_functional."


def with_traced_waits(program: RankProgram) -> RankProgram:
    """The program with each wait for a collective of a compiled graph right behind it."""
    ops = program.ops
    wait_of = {
        op.after[0]: index
        for index, op in enumerate(ops)
        if op.kind == "wait" and len(op.after) == 1 and _is_traced(ops[op.after[0]])
    }
    if all(wait == call + 1 for call, wait in wait_of.items()):
        return program
    waits = set(wait_of.values())
    order: list[int] = []
    for index in range(len(ops)):
        if index not in waits:
            order.append(index)
        if index in wait_of:
            order.append(wait_of[index])
    return rewritten(program, order, {wait: _beside(ops[wait], ops[call]) for call, wait in wait_of.items()}, {})


def _is_traced(op: Op) -> bool:
    return bool(op.compiled) and op.name.startswith(FUNCTIONAL)


def _beside(wait: Op, call: Op) -> Op:
    """In the graph of what it waits for, wherever it was recorded."""
    return replace(
        wait,
        stream=call.stream,
        module=call.module,
        phase=call.phase,
        micro_batch=call.micro_batch,
        recompute=call.recompute,
        compiled=call.compiled,
    )
