"""What peers' data is: pure functions that fill this rank's output tensors.

The default is *peers like me*: each peer holds what this rank holds. Then

    all_reduce         sum = n x own, avg = max = min = own, product = own ** n
    all_gather, gather every part = own
    reduce_scatter     own part, reduced with n equals
    all_to_all         from every peer what this rank sends to itself: the part of its input that has its own number
    broadcast          own value, whoever the root is; scatter: own part at the root
    receive            noise of small scale: only the sender knows

so a step among virtual peers is a step among `n` real ranks that read the same batch: losses and gradients stay
finite and averages stay what they are. Sums of activations (tensor parallelism) grow by the group's size, as they
would if all shards were equal, and normalisation layers bring them back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from windtunnel.real.capture.virtual_world.refusals import NoPeerError
from windtunnel.studies.programs.communication import Communication

if TYPE_CHECKING:
    import torch

NOISE_SCALE = 0.02  # standard deviation of received activations: that of a usual initialisation


@dataclass(frozen=True, eq=False)
class Exchange:
    """One call with its tensors. In-place calls have the same tensors in `inputs` and `outputs`.

    A gather into one tensor per peer has `n` outputs for each input, one into a single tensor has one (its rows, by
    peer); the same holds, turned round, for scatters.
    """

    call: Communication
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    noise: Callable[[torch.Tensor], None]  # fills a tensor, from a generator that is not the script's
    factor: object = None  # of premul_sum
    send_rows: tuple[int, ...] = ()  # all_to_all in one tensor with splits: rows to each member
    receive_rows: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Members of the group."""
        return len(self.call.members)


Fill = Callable[[Exchange], None]


def like_me(exchange: Exchange) -> None:
    """Every peer holds what this rank holds."""
    _LIKE_ME[exchange.call.kind](exchange)


def noise(exchange: Exchange) -> None:
    """What peers hold is noise: of small scale in floating-point tensors, zero in others. Only the shape is right."""
    if exchange.call.kind in ("send", "barrier"):
        return
    for output in exchange.outputs:
        exchange.noise(output)


def fill_from_tape(tape: Callable[[Exchange], bool], otherwise: Fill = like_me) -> Fill:
    """A tape fills the outputs and says True, or says False: then `otherwise` does."""

    def fill(exchange: Exchange) -> None:
        if not tape(exchange):
            otherwise(exchange)

    return fill


@dataclass(frozen=True)
class PeerPolicy:
    """Which data peers are given, by kind of communication."""

    default: Fill = like_me
    by_kind: Mapping[str, Fill] = field(default_factory=dict)

    def fill(self, exchange: Exchange) -> None:
        """Fill `exchange.outputs`."""
        self.by_kind.get(exchange.call.kind, self.default)(exchange)

    def gives_own(self, kind: str) -> bool:
        """Whether peers hold what this rank holds, in calls of this kind."""
        return self.by_kind.get(kind, self.default) is like_me


PEERS_LIKE_ME = PeerPolicy()


# ------------------------------------------------------------------------------------------------------------ like me


def reduce_equals(tensor: torch.Tensor, op: str, count: int, factor: object = None) -> None:
    """In place, the reduction of `count` tensors that all equal this one."""
    import torch

    if op == "sum":
        _times(tensor, count)
    elif op == "premul_sum":
        _times(tensor, factor if factor is not None else 1)
        _times(tensor, count)
    elif op == "product" and tensor.dtype != torch.bool:
        tensor.pow_(count)
    elif op == "bxor":
        if count % 2 == 0:
            tensor.zero_()
    elif op not in ("avg", "min", "max", "band", "bor", "product"):
        raise AssertionError(f"reduction {op!r}")


def _times(tensor: torch.Tensor, factor: object) -> None:
    import torch

    if tensor.dtype == torch.bool:
        return  # a sum of equal truths is that truth
    if tensor.is_floating_point() and tensor.element_size() == 1:  # float8 has no arithmetic
        tensor.copy_((tensor.float() * factor).to(tensor.dtype))
    else:
        tensor.mul_(factor)


def _all_reduce(exchange: Exchange) -> None:
    for output in exchange.outputs:
        reduce_equals(output, exchange.call.reduce_op, exchange.size, exchange.factor)


def _reduce(exchange: Exchange) -> None:
    call = exchange.call
    if call.members[call.position] == call.peer:  # others' tensors are left as they are
        _all_reduce(exchange)


def _gather(exchange: Exchange) -> None:
    if not exchange.outputs:
        return  # not the root
    each = len(exchange.outputs) // len(exchange.inputs)
    for number, own in enumerate(exchange.inputs):
        parts = exchange.outputs[number * each : (number + 1) * each]
        if each == 1 and exchange.size > 1:
            _repeat(parts[0], own, exchange.size, exchange.call.position)
        else:
            for part in parts:
                tile(part, own, exchange.noise)


def _repeat(whole: torch.Tensor, own: torch.Tensor, count: int, position: int) -> None:
    """Rows of `whole` become `own`. A gather in place (FSDP2) has `own` as the row of this rank: it is not written."""
    rows, row = whole.view(count, -1), own.reshape(1, -1)
    if rows[position].data_ptr() == row.data_ptr():
        rows[:position].copy_(row)
        rows[position + 1 :].copy_(row)
    else:
        rows.copy_(row)


def _reduce_scatter(exchange: Exchange) -> None:
    call = exchange.call
    each = len(exchange.inputs) // len(exchange.outputs)
    for number, output in enumerate(exchange.outputs):
        if each == 1 and exchange.size > 1:
            own = exchange.inputs[number].reshape(exchange.size, -1)[call.position].view(output.shape)
        else:
            own = exchange.inputs[number * each + (call.position if each > 1 else 0)]
        if own.data_ptr() != output.data_ptr():
            output.copy_(own.reshape(output.shape))
        reduce_equals(output, call.reduce_op, exchange.size, exchange.factor)


def _scatter(exchange: Exchange) -> None:
    if exchange.inputs:
        tile(exchange.outputs[0], exchange.inputs[exchange.call.position], exchange.noise)
    else:
        exchange.noise(exchange.outputs[0])  # only the root knows


def _all_to_all(exchange: Exchange) -> None:
    size, position = exchange.size, exchange.call.position
    if len(exchange.outputs) != 1 or len(exchange.inputs) != 1 or size == 1:  # a tensor for each peer
        for output in exchange.outputs:
            own = exchange.inputs[position]
            tile(output, own if own.numel() else _first_with_rows(exchange.inputs, own), exchange.noise)
        return
    output, whole = exchange.outputs[0], exchange.inputs[0]
    if not exchange.send_rows and not exchange.receive_rows:
        _repeat(output, whole.reshape(size, -1)[position], size, position)
        return
    sent, received = exchange.send_rows or _even(whole, size), exchange.receive_rows or _even(output, size)
    own = whole.narrow(0, sum(sent[:position]), sent[position])
    if not own.numel():
        own = whole
    if len(set(received)) == 1 and received[0] == sent[position]:
        _repeat(output, own, size, position) if output.numel() else None
        return
    start = 0
    for rows in received:
        tile(output.narrow(0, start, rows), own, exchange.noise)
        start += rows


def _even(tensor: torch.Tensor, size: int) -> tuple[int, ...]:
    return (int(tensor.shape[0]) // size,) * size


def _first_with_rows(tensors: tuple[torch.Tensor, ...], otherwise: object) -> object:
    return next((tensor for tensor in tensors if tensor.numel()), otherwise)


def tile(output: torch.Tensor, own: torch.Tensor, noise: Callable[[object], None]) -> None:
    """`own` again and again until `output` is full."""
    if not output.numel() or output.data_ptr() == own.data_ptr():
        return
    if output.numel() == own.numel():
        output.copy_(own.reshape(output.shape))
    elif not own.numel():
        noise(output)
    else:
        flat, row = output.view(-1) if output.is_contiguous() else None, own.reshape(-1)
        if flat is None:
            times = -(-output.numel() // row.numel())
            output.copy_(row.repeat(times)[: output.numel()].view(output.shape))
            return
        whole = flat.numel() // row.numel() * row.numel()
        flat[:whole].view(-1, row.numel()).copy_(row) if whole else None
        flat[whole:].copy_(row[: flat.numel() - whole])


def _receive(exchange: Exchange) -> None:
    call = exchange.call
    if call.is_control:
        what = f"recv of {sum(t.numel() for t in exchange.outputs)} {call.dtype} element(s) on group {call.group!r}"
        raise NoPeerError(what, call.peer, "no other rank runs")
    noise(exchange)


def _nothing(exchange: Exchange) -> None:
    del exchange


_LIKE_ME: dict[str, Fill] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _nothing,
    "all_gather": _gather,
    "gather": _gather,
    "reduce_scatter": _reduce_scatter,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "barrier": _nothing,
    "send": _nothing,
    "recv": _receive,
}


def fill_with_noise(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Normal with a standard deviation of `NOISE_SCALE` in floating-point tensors; zeros in others (a valid index)."""
    import torch

    from windtunnel.real.capture.torch_private import factories as plain

    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point():
        tensor.zero_()
    elif tensor.element_size() == 1:  # float8 cannot be drawn
        tensor.copy_(plain.empty(tensor.shape, device=tensor.device).normal_(0, NOISE_SCALE, generator=generator))
    else:
        tensor.normal_(0, NOISE_SCALE, generator=generator)
