"""Allocations and frees: laws that hold for any step, and categories by what becomes of a storage."""

from __future__ import annotations

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from small_models import Decoder, recorded, replayed, train  # noqa: E402

from windtunnel.real.capture.recorder.recorder import Recorder  # noqa: E402
from windtunnel.studies.programs.program import MemoryEvent, RankProgram  # noqa: E402
from windtunnel.studies.programs.rank_classes.equality import peak as peak_of  # noqa: E402


def test_steps_hand_over_what_they_hold() -> None:
    programs = recorded(lambda _: train(Decoder(), 4, clip=True), keep="all").programs
    for before, after in pairwise(programs):
        assert replayed(before) == {event.storage: event.bytes for event in after.resident}
        assert all(size > 0 for size in replayed(before).values())
    # steady state: a step ends with as much as it began with
    last = programs[-1]
    assert sum(event.bytes for event in last.memory) == 0


def test_only_storages_count_not_views_of_them() -> None:
    with Recorder(0, 1) as recorder:
        recorder.begin_step()
        x = torch.empty(100, 10)
        views = [x.t(), x[3], x.view(10, 100), x.expand(2, 100, 10), x.detach()]
        y = x + 1
        del y
        program = recorder.end_step()
    assert [event.bytes for event in program.memory] == [4000, 4000, -4000]
    assert len(views) == 5


def test_a_storage_lives_until_its_last_view_is_gone() -> None:
    with Recorder(0, 1) as recorder:
        recorder.begin_step()
        x = torch.empty(1000)
        part = x[:10]
        del x
        held = recorder.ledger.current_bytes
        del part
        recorder.end_step()
        assert (held, recorder.ledger.current_bytes) == (4000, 0)


def test_resizing_a_storage_changes_what_is_held() -> None:
    with Recorder(0, 1) as recorder:
        recorder.begin_step()
        x = torch.empty(1000)
        x.untyped_storage().resize_(0)
        freed = recorder.ledger.current_bytes
        x.untyped_storage().resize_(8000)
        program = recorder.end_step()
    assert freed == 0
    assert [event.bytes for event in program.memory] == [4000, -4000, 8000]


def test_categories() -> None:
    program = recorded(lambda _: train(Decoder(), 2)).program
    parameters = sum(p.numel() * 4 for p in Decoder().parameters())
    resident = dict.fromkeys(("parameter", "optimizer"), 0)
    for event in program.resident:
        if event.category in resident:
            resident[event.category] += event.bytes
    assert resident["parameter"] == parameters
    assert 2 * parameters <= resident["optimizer"] <= 2 * parameters + 100  # two moments, and the counts of steps
    came = {
        category: sum(e.bytes for e in program.memory if e.category == category and e.bytes > 0)
        for category in ("gradient", "activation", "temporary")
    }
    assert came["gradient"] == parameters
    assert came["activation"] > 0 < came["temporary"]
    for event in program.memory:
        if event.category == "activation" and event.bytes > 0:
            assert program.ops[event.op].phase == "forward"


def test_peak_of_a_program_written_by_hand() -> None:
    def at(op: int, storage: int, size: int, category: str = "other") -> MemoryEvent:
        return MemoryEvent(op, storage, size, category)

    memory = (
        at(0, 1, 50, "activation"),
        at(1, 2, 30, "temporary"),
        at(1, 2, -30, "temporary"),
        at(2, 1, -50, "activation"),
    )
    program = RankProgram(0, 1, (), memory, (at(-1, 0, 100, "parameter"),))
    assert peak_of(program) == (180, 1)
    assert peak_of(RankProgram(0, 1, (), (at(0, 0, -100),), (at(-1, 0, 100),))) == (100, -1)


def test_a_bigger_batch_holds_more_and_never_less() -> None:
    def peak(rows: int) -> int:
        def job(device: str) -> None:
            model = torch.nn.Linear(64, 64)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                model(torch.zeros(rows, 64)).relu().sum().backward()
                optimizer.step()

        return peak_of(recorded(job, fake="cpu").program)[0]

    assert peak(8) < peak(64) < peak(1 << 20)  # the last would not fit a test machine
