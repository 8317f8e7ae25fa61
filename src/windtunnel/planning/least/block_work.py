"""What the ops of a block take at least, wherever and beside whatever they run."""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.cost.price import Price, nanoseconds
from windtunnel.model.operations import Operation, Transfer
from windtunnel.planning.least.block_times import BACKWARD, FORWARD
from windtunnel.training.lowering.block import Block
from windtunnel.training.memory.saved_tensors import keeping
from windtunnel.training.pricing import Pricer


def block_work(pricer: Pricer, blocks: Mapping[int, Block]) -> dict[tuple[int, int], int]:
    """Nanoseconds that each block takes at least, by pass and kind: op by op, at the best switches, without launches.

    Until the op behind it can start, an op takes its kernel, and no less than any one transfer that it waits for or
    that the op behind it waits for; a ring takes all of its exchanges and the last part of its kernel.
    """
    plan = pricer.layout.plan
    slack = 1 + plan.cp  # of rounding each part of an op to whole nanoseconds
    again = not keeping(plan.framework).keeps_all_inputs

    def kernel(price: Price) -> int:
        return max(0, nanoseconds(price.seconds) - slack)

    def sent(transfer: Transfer | None) -> int:
        return 0 if transfer is None else max(0, nanoseconds(pricer.transfer(transfer)[0].seconds) - slack)

    def forward(op: Operation) -> int:
        if op.backward_only:
            return 0
        if op.kind == "transfer":
            return _dispatched(op.before)
        if op.kind == "attention" and op.before is not None:
            whole = kernel(pricer.forward(op))
            return max(whole, (plan.cp - 1) * sent(op.before) + whole // plan.cp)
        return max(kernel(pricer.forward(op)), sent(op.before), sent(op.after))

    def backward(op: Operation) -> int:
        if op.kind == "transfer":
            return _dispatched(op.before_backward)
        if op.kind == "attention":
            whole = kernel(pricer.input_gradient(op))
            return whole if op.before is None else max(whole, 2 * (plan.cp - 1) * sent(op.before) + whole // plan.cp)
        if op.kind == "memory":
            return sent(op.before_backward) + (kernel(pricer.input_gradient(op)) if op.backward_bytes else 0)
        gathered = sent(op.regather) if again and op.weight_elements else 0
        inputs = max(kernel(pricer.input_gradient(op)), sent(op.before_backward), gathered)
        return inputs + max(kernel(pricer.weight_gradient(op)) if op.weight_elements else 0, sent(op.after_backward))

    def _dispatched(transfer: Transfer | None) -> int:
        # Another micro-batch's compute may hide what experts send each other.
        return 0 if transfer is None or transfer.group == "ep" else sent(transfer)

    return {
        (which, kind): sum(map(forward if which == FORWARD else backward, block.operations))
        for kind, block in blocks.items()
        for which in (FORWARD, BACKWARD)
    }
