"""What autograd keeps of a hand-written loop over experts, and what its backward allocates: one rule per op."""

from __future__ import annotations

from windtunnel.physics.model.operations import Operation
from windtunnel.studies.training.memory.eager.autograd import FP32, INDEX, Autograd, Backward


def choose(run: Autograd, op: Operation) -> Backward:
    """Softmax and top-k of the router's scores."""
    w, source = run.w, op.reads[0]
    assert op.timed is not None
    size, picks = w.size[run.value[source]], op.output_bytes / run.style.width
    saved = run.keep_new(FP32 * op.timed.rows * op.timed.width, (2 * FP32 + INDEX) * picks)
    run.out(op)

    def back(gradient: int) -> None:
        run.passing(FP32 * picks, size * FP32 / run.style.width)
        w.drop(gradient, *saved)
        run.give(source, w.new(size))

    return back


def gather(run: Autograd, op: Operation) -> Backward:
    """`index_select`: keeps the rows' numbers, twice."""
    source = op.reads[0]
    assert op.timed is not None
    size = run.w.size[run.value[source]]
    saved = run.keep_new(2 * INDEX * op.timed.rows)
    run.out(op)
    return run.back_to(source, size, saved)


def weigh(run: Autograd, op: Operation) -> Backward:
    """Rows times their scores: keeps both."""
    w, (rows, scores) = run.w, op.reads
    assert op.timed is not None
    of_scores = w.size[run.value[scores]]
    saved = run.keep(run.value[rows]) + run.keep_new(run.style.width * op.timed.rows)
    run.out(op)

    def back(gradient: int) -> None:
        by_scores, by_rows = w.new(w.size[gradient]), w.new(w.size[gradient])
        w.drop(by_rows, gradient, *saved)
        run.give(rows, by_scores)
        run.give(scores, w.new(of_scores))

    return back


def scatter(run: Autograd, op: Operation) -> Backward:
    """Adds one expert's rows to the sum of all, in place; only the first has to make it."""
    w, (rows, *sums) = run.w, op.reads
    size = w.size[run.value[rows]]
    saved = run.keep(run.value[rows])  # for its shape alone
    if sums:
        run.value[op.name] = w.hold(run.value[sums[0]])
    else:
        run.out(op)

    def back(gradient: int) -> None:
        run.give(rows, w.new(size))
        w.drop(*saved)
        if sums:
            run.give(sums[0], gradient)
        else:
            w.drop(gradient)

    return back
