"""The order in which a layer really runs: the experts' loop round by round, a recomputation up to its last tensor."""

from __future__ import annotations

from dataclasses import replace

from windtunnel.physics.model.operations import Operation


def unrolled(operations: tuple[Operation, ...]) -> list[Operation]:
    """Ops as they run: those of the experts' loop once per expert, each with its share of the rows."""
    ops: list[Operation] = []
    loop: list[Operation] = []
    for op in operations:
        if op.repeats:
            loop.append(op)
            continue
        ops += _rounds(loop)
        loop = []
        ops.append(op)
    return ops + _rounds(loop)


def _rounds(loop: list[Operation]) -> list[Operation]:
    rounds = []
    inside = {op.name for op in loop}
    last = loop[0].repeats - 1 if loop else 0
    for number in range(last + 1) if loop else ():
        for op in loop:
            share = 1.0 / op.repeats
            # The last round's sum goes by the name that the residual reads.
            own = op.name if op.name == "combine" and number == last else f"{op.name} {number}"
            reads = [f"{name} {number}" if name in inside else name for name in op.reads]
            if op.name == "combine" and number:
                reads.append(f"combine {number - 1}")
            whole = op.name == "combine"
            rounds.append(
                replace(
                    op,
                    name=own,
                    reads=tuple(reads),
                    output_bytes=op.output_bytes if whole else op.output_bytes * share,
                    weight_elements=op.weight_elements * share,
                )
            )
    return rounds


def until_kept(run: list[Operation]) -> list[Operation]:
    """Ops of a recomputation: it stops where the last tensor that backward needs has been made, so what the last
    linear layer gives and what follows from it takes nothing."""
    last = max((number for number, op in enumerate(run) if op.kind == "gemm"), default=len(run))
    if any(op.repeats for op in run):
        return run
    return run[:last] + [replace(op, output_bytes=0.0) for op in run[last:]]
