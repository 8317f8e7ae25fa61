"""A captured program with ops in another order, left out, or put in: everything that names an op by its place follows.

An op is named by its place in the old program, a new one by any number beyond those. `after` and `reads` of the
ops given name ops in this way. What named an op that is left out names the one that stands for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from windtunnel.studies.programs.program import Op, RankProgram


def rewritten(
    program: RankProgram,
    order: Sequence[int],
    new_ops: Mapping[int, Op],
    stands: Mapping[int, int],
    dropped: frozenset[int] = frozenset(),
) -> RankProgram:
    """The program with the ops `order`, of which `made` are new or changed.

    `stands`: of each op that is left out, which one stands for it. `gone`: storages that are not made any more.
    """
    place = {name: at for at, name in enumerate(order)}

    def at(name: int) -> int:
        while name not in place:
            name = stands[name]
        return place[name]

    def op_at(here: int, op: Op) -> Op:
        after = tuple(sorted({at(earlier) for earlier in op.after} - {here}))
        reads = tuple((storage, at(writer) if writer >= 0 else -1, size) for storage, writer, size in op.reads)
        return replace(op, after=after, reads=reads)

    old = program.ops
    ops = tuple(op_at(here, new_ops[name] if name in new_ops else old[name]) for here, name in enumerate(order))
    last = len(ops) - 1
    where = [min(at(name), last) for name in range(len(old))]
    memory = [
        event._replace(op=where[min(event.op, len(where) - 1)])
        for event in program.memory
        if event.storage not in dropped
    ]
    memory.sort(key=lambda event: event.op)  # stable: events of one op keep their order
    answers = tuple(answer._replace(op=where[answer.op]) if answer.op >= 0 else answer for answer in program.answers)
    return replace(program, ops=ops, memory=tuple(memory), answers=answers)
