"""Small numbers that decide what a script does: known before they are read, true to all that follows, and other ranks'
where other ranks hold something else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
from mailboxes import LocalMailbox  # noqa: E402
from small_models import recorded  # noqa: E402
from worlds import nothing_left, opened  # noqa: E402, F401

from windtunnel.real.capture.fake_tensors.control_flow import Answers  # noqa: E402
from windtunnel.real.capture.fake_tensors.fake import fake_tensors  # noqa: E402
from windtunnel.real.capture.processes.rank_process import EmptyStepError, check_not_empty  # noqa: E402
from windtunnel.real.capture.recorder.recorder import Recorder  # noqa: E402
from windtunnel.real.capture.virtual_world.refusals import NoPeerError  # noqa: E402
from windtunnel.studies.programs.program import Op, RankProgram, TensorSpec  # noqa: E402


def read(job: Callable[[], Any], **how: Any) -> Any:
    """What `job` gives on tensors without data."""
    found = []
    recorded(lambda _: found.append(job()), fake="cpu", **how)
    return found[0]


# ---- one rank


def test_what_follows_from_a_value_that_was_told_follows() -> None:
    def job() -> list[Any]:
        loss = (torch.randn(8) * 3).sum()
        told = loss.item()
        starts = torch.randint(10, 1000, (4,))
        return [told, (loss * 2 + 1).item(), *[(int(i), int(i + 256), len(range(2000)[i : i + 256])) for i in starts]]

    told, twice, *starts = read(job)
    assert twice == 2 * told + 1
    assert starts == [(10, 266, 256)] * 4  # the least of those that were to be drawn


ASSERTS = """
ends = torch.tensor([1, 0])
dist.all_reduce(ends, op=dist.ReduceOp.MAX)  # of ranks that do not run: they are taken to hold the same
said.append(bool(torch.all(ends)))
if torch.all(ends):
    assert not said, "behind a test that is no assertion"
said.append(torch.all(ends).item())
assert torch.all(ends), "a part is missing"
assert torch.all(ends > 0).item()
try:
    assert torch.all(torch.tensor([1, 0]))  # what this rank knows alone
except AssertionError:
    said.append("its own")
"""


def test_what_is_asserted_of_what_other_ranks_hold_holds_and_other_reads_are_as_they_were() -> None:
    said: list[object] = []
    code = compile(ASSERTS, "train.py", "exec")  # pytest writes its own assertions anew
    with opened(0, 16) as world:
        read(lambda: exec(code, {"torch": torch, "dist": dist, "said": said}), world=world)
    assert said == [False, False, "its own"]


def test_a_draw_is_the_answer_where_that_could_be_drawn() -> None:
    assert read(lambda: torch.randint(0, 5, (2,)).tolist(), answers=Answers(integer=3)) == [3, 3]
    assert read(lambda: torch.randint(0, 5, (2,)).tolist(), answers=Answers(integer=30)) == [4, 4]


FINITE: dict[str, Callable[[Any], Any]] = {
    "DeepSpeed": lambda x: x.isinf().logical_or(x.isnan()).float().max().to(torch.uint8),
    "sum of a mask": lambda x: torch.isnan(x).sum(),
    "count": lambda x: torch.count_nonzero(~torch.isfinite(x)),
    "own comparison": lambda x: (x != x).any().to(torch.int32),
    "several": lambda x: torch.stack([torch.isinf(x).any(), torch.isnan(x).any()]).sum(),
    "all are": lambda x: 1 - torch.isfinite(x).all().long(),
}


@pytest.mark.parametrize("size", [3, 70_000])
@pytest.mark.parametrize("name", FINITE)
def test_numbers_that_nobody_knows_are_finite_whatever_counts_it(name: str, size: int) -> None:
    assert read(lambda: FINITE[name](torch.randn(size) * torch.randn(size)).item()) == 0


def test_that_a_number_is_finite_says_nothing_of_its_value() -> None:
    def job() -> Any:
        x = torch.randn(5)
        return (x > 0.5).any().item(), (x * torch.isfinite(x)).sum().item()

    assert read(job, answers=Answers(loss=7.5)) == (False, 7.5)


def test_a_script_may_replace_what_makes_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(make: Any) -> Any:
        return lambda *args, device="meta", **more: make(*args, device=device, **more)

    for name in ("zeros", "full", "empty", "tensor", "empty_strided"):
        monkeypatch.setattr(torch, name, elsewhere(getattr(torch, name)))
    assert read(lambda: (torch.ones(3, dtype=torch.int64) + 4).tolist()) == [5, 5, 5]
    assert read(lambda: torch.randn(70_000).isnan().sum().item()) == 0


# ---- several ranks

GIVES: dict[str, tuple[Callable[[Any, int], Any], Callable[[int], Any]]] = {
    "all_gather": (lambda own, r: _gathered(own), lambda r: [[0, 0], [1, 10], [2, 20]]),
    "all_gather_into_tensor": (lambda own, r: _whole(own), lambda r: [0, 0, 1, 10, 2, 20]),
    "functional": (
        lambda own, r: functional.all_gather_tensor(own, 0, dist.group.WORLD).tolist(),
        lambda r: [0, 0, 1, 10, 2, 20],
    ),
    "all_reduce max": (lambda own, r: _reduced(own, dist.ReduceOp.MAX), lambda r: [2, 20]),
    "all_reduce sum": (lambda own, r: _reduced(own, dist.ReduceOp.SUM), lambda r: [3, 30]),
    "all_to_all": (lambda own, r: _exchanged(own, r), lambda r: [r, 10 + r, 20 + r]),
}


def _gathered(own: Any) -> Any:
    dist.all_gather(parts := [torch.empty_like(own) for _ in range(3)], own)
    return [part.tolist() for part in parts]


def _whole(own: Any) -> Any:
    dist.all_gather_into_tensor(whole := torch.empty(6, dtype=own.dtype), own)
    return whole.tolist()


def _reduced(own: Any, op: Any) -> Any:
    dist.all_reduce(own, op=op)
    return own.tolist()


def _exchanged(own: Any, rank: int) -> Any:
    dist.all_to_all_single(into := torch.empty(3, dtype=own.dtype), torch.arange(3) + 10 * rank)
    return into.tolist()


def on(rank: int, box: Any, job: Callable[[], Any], timeout_s: float = 5.0) -> Any:
    with (
        fake_tensors("cpu"),
        opened(rank, 3, mailbox=box, any_can_run=True, mailbox_timeout_s=timeout_s) as world,
        Recorder(rank, 3, world),
    ):
        world.fake = True
        return job()


@pytest.mark.parametrize("name", GIVES)
def test_ranks_hold_what_each_of_them_holds(name: str) -> None:
    box, (job, expected) = LocalMailbox(), GIVES[name]
    for rank in range(3):  # each says what it holds before it asks
        with contextlib.suppress(NoPeerError):
            on(rank, box, lambda rank=rank: job(torch.tensor([rank, 10 * rank]), rank), 0.01)
    for rank in range(3):
        assert on(rank, box, lambda rank=rank: job(torch.tensor([rank, 10 * rank]), rank)) == expected(rank)


def test_a_broadcast_brings_what_its_root_holds() -> None:
    def job(rank: int) -> Any:
        flags = torch.tensor([4, 5, 6] if rank == 2 else [0, 0, 0])
        scale = torch.tensor(0.5 if rank == 2 else 0.0)
        dist.broadcast(flags, src=2)
        dist.broadcast(scale, src=2)
        return flags.tolist(), (scale * 2).item()

    box = LocalMailbox()
    assert on(2, box, lambda: job(2)) == on(0, box, lambda: job(0)) == ([4, 5, 6], 1.0)


FLOATS: dict[str, tuple[Callable[[int], Any], Any]] = {
    "least": (lambda r: _reduced(torch.tensor(float(r < 2)), dist.ReduceOp.MIN), 0.0),  # as a flag to stop may be
    "mean": (lambda r: _reduced(torch.tensor(float(r)), dist.ReduceOp.AVG), 1.0),
    "each": (lambda r: _gathered(torch.tensor([r / 2])), [[0.0], [0.5], [1.0]]),
}


@pytest.mark.parametrize("name", FLOATS)
def test_a_float_of_each_rank_is_exchanged_too(name: str) -> None:
    box, (job, expected) = LocalMailbox(), FLOATS[name]
    for rank in range(3):
        with contextlib.suppress(NoPeerError):
            on(rank, box, lambda rank=rank: job(rank), 0.01)
    assert [on(rank, box, lambda rank=rank: job(rank)) for rank in range(3)] == [expected] * 3


def test_who_does_not_know_its_own_does_not_wait_for_others() -> None:
    def job() -> Any:
        dist.all_reduce(unknown := torch.randn(4).argmax(), op=dist.ReduceOp.MAX)
        return unknown.item()

    assert on(1, LocalMailbox(), job, 0.01) == 1  # as it is told of any number


# ---- what is no step


def test_a_forward_pass_on_nothing_is_refused() -> None:
    def program(rows: int) -> RankProgram:
        made = TensorSpec((rows, 384), "float32")
        ops = [Op("aten.mm.default", "compute", outputs=(made,), phase="forward", flops=float(rows)) for _ in range(4)]
        return RankProgram(0, 8, (*ops, Op("aten.add.Tensor", "compute", phase="other")))

    check_not_empty(program(2), "train.py")
    with pytest.raises(EmptyStepError, match=r"4 of 4 ops .*aten.mm gives \[0, 384\].*--answer"):
        check_not_empty(program(0), "train.py")
