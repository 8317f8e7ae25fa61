"""Counts of tokens, known although tensors hold no data: through arithmetic, and through collectives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
from small_models import rank_of  # noqa: E402

from windtunnel.real.capture.fake_tensors.control_flow import Answers, is_script  # noqa: E402
from windtunnel.real.capture.recorder.recorder import Recorder  # noqa: E402
from windtunnel.real.capture.virtual_world.refusals import WorldError  # noqa: E402

TOKENS, TOP_K, EXPERTS, RANKS = 6000, 2, 8, 4  # 12,000 choices: more than are kept as numbers
EACH = TOKENS * TOP_K // EXPERTS


def chosen() -> Any:
    return torch.rand(TOKENS, EXPERTS).topk(TOP_K).indices.flatten()


def scattered() -> Any:
    choice = chosen()
    return torch.zeros(EXPERTS, dtype=torch.int64).scatter_add_(0, choice, torch.ones_like(choice))


def told(job: Callable[[], Any], answers: Answers | None = None) -> tuple[Any, Recorder]:
    """What `job` gives on one rank of four, on tensors without data."""
    with rank_of(RANKS, 1, fake="cpu") as world, Recorder(1, RANKS, world, answers=answers) as recorder:
        recorder.begin_step()
        found = job()
        recorder.end_step()
    return found, recorder


COUNTS: dict[str, Callable[[], Any]] = {
    "scatter_add_": scattered,
    "bincount": lambda: torch.bincount(chosen(), minlength=EXPERTS),
    "histc": lambda: torch.histc(chosen().float(), bins=EXPERTS, min=0, max=EXPERTS).long(),
    "one-hot": lambda: torch.nn.functional.one_hot(chosen(), EXPERTS).sum(0),
}


@pytest.mark.parametrize("name", COUNTS)
def test_every_expert_gets_as_many_tokens(name: str) -> None:
    counts, recorder = told(lambda: COUNTS[name]().tolist())
    assert counts == [EACH] * EXPERTS
    assert {answer.told for answer in recorder.program.answers} >= {str(EACH)}  # it is made up, and said to be


def test_tokens_that_do_not_divide_are_all_there() -> None:
    counts, _ = told(lambda: torch.bincount(torch.rand(10, 4).argmax(-1), minlength=4).tolist())
    assert counts == [3, 3, 2, 2]


def exchanged(counts: Any) -> Any:
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts)
    return received


def exchanged_functionally(counts: Any) -> Any:
    return functional.all_to_all_single(counts, None, None, dist.group.WORLD)


@pytest.mark.parametrize("exchange", [exchanged, exchanged_functionally])
def test_counts_are_followed_to_other_ranks_and_back_to_python(exchange: Callable[[Any], Any]) -> None:
    def job() -> Any:
        sent = scattered()
        received = exchange(sent)
        both = torch.stack((sent, received)).view(2, RANKS, -1)
        to, of = both.sum(-1).to("cpu", non_blocking=True).tolist()
        return to, of, torch.cat((sent, received)).cumsum(0)[-1].item()

    (to, of, total), _ = told(job)
    assert to == of == [TOKENS * TOP_K // RANKS] * RANKS  # what I send my peers are sent too, by peers like me
    assert total == 2 * TOKENS * TOP_K


def test_a_sum_over_ranks_is_that_of_equal_ranks() -> None:
    def job() -> Any:
        counts = scattered()
        dist.all_reduce(counts)
        return counts.tolist(), functional.all_reduce(scattered(), "sum", dist.group.WORLD).tolist()

    found, _ = told(job)
    assert found == ([RANKS * EACH] * EXPERTS,) * 2


def test_what_is_written_over_is_forgotten() -> None:
    def job() -> Any:
        counts = scattered()
        counts.copy_(torch.randint(0, 9, (EXPERTS,)))
        ones = torch.ones(20_000, dtype=torch.int64)
        ones.random_(0, 5)
        choice = torch.rand(20_000, EXPERTS).argmax(-1)
        other = torch.zeros(EXPERTS, dtype=torch.int64).scatter_add_(0, choice, ones)
        return counts.tolist(), other.tolist()

    found, _ = told(job, Answers(integer=7))
    assert found == ([7] * EXPERTS,) * 2


def test_an_answer_for_the_line_wins_over_what_is_known() -> None:
    def job() -> Any:
        return scattered().tolist()

    line = job.__code__.co_firstlineno + 1
    found, recorder = told(job, Answers(by_line={f"test_known_values.py:{line}": 3}))
    assert found == [3] * EXPERTS
    assert {answer.told for answer in recorder.program.answers} == {"3"}


@pytest.mark.parametrize("splits", [[1, 1, 1, 1], [4, 4]])
@pytest.mark.parametrize("functionally", [False, True])
def test_splits_that_do_not_fit_are_refused_where_they_are_given(splits: list[int], functionally: bool) -> None:
    def job() -> Any:
        rows = torch.randn(8, 3)
        if functionally:
            return functional.all_to_all_single(rows, [2] * RANKS, splits, dist.group.WORLD)
        return dist.all_to_all_single(torch.empty(8, 3), rows, [2] * RANKS, splits)

    with pytest.raises((WorldError, RuntimeError, ValueError), match=r"[Ss]plit"):
        told(job)


@pytest.mark.parametrize("folder", ["torch", "windtunnel/examples", "numpy"])
def test_a_script_is_known_whatever_its_folder_is_called(folder: str) -> None:
    import numpy

    import windtunnel

    assert is_script(f"/home/somebody/{folder}/train.py")
    for module in (torch, torch.nn, numpy, windtunnel, contextlib):
        assert not is_script(str(module.__file__))
