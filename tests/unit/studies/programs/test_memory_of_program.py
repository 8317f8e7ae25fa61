"""Memory of a captured program through the caching allocator: each stream has blocks of its own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.physics.graph.allocator_settings import AllocatorSettings
from windtunnel.studies.programs.memory import memory_of_program
from windtunnel.studies.programs.program import MemoryEvent, Op, RankProgram

SIZE = 64 << 20


@pytest.mark.parametrize(("stream", "blocks"), [(0, 1), (7, 2)])
def test_a_block_is_used_again_on_its_own_stream_only(stream: int, blocks: int) -> None:
    ops = tuple(Op("aten.mul", "compute", stream=one) for one in (stream, stream, 0, 0))
    memory = tuple(
        MemoryEvent(op, storage, held, "temporary")
        for op, storage, held in ((0, 1, SIZE), (1, 1, -SIZE), (2, 2, SIZE), (3, 2, -SIZE))
    )
    found = memory_of_program(RankProgram(0, 1, ops, memory))
    assert found.peak_allocated_bytes == SIZE
    assert found.peak_reserved_bytes == blocks * SIZE


def stored(*events: tuple[int, int, int, str], resident: tuple[tuple[int, int, str], ...] = ()) -> RankProgram:
    """Three ops, the last of which is the optimizer's."""
    ops = tuple(Op("aten.mul", "compute", phase=phase) for phase in ("forward", "backward", "optimizer"))
    return RankProgram(
        0, 1, ops, tuple(MemoryEvent(*event) for event in events), tuple(MemoryEvent(-1, *one) for one in resident)
    )


def test_state_that_the_first_step_made_lies_in_the_way_of_later_ones() -> None:
    """It goes where the first step's activation was, beside a gradient; a later activation finds no room there."""
    program = stored(
        (0, 1, 4 * SIZE, "activation"), (1, 9, -SIZE, "gradient"), (1, 2, SIZE, "gradient"),
        (1, 1, -4 * SIZE, "activation"),
        resident=((0, SIZE, "parameter"), (3, SIZE, "optimizer"), (4, SIZE, "optimizer"), (9, SIZE, "gradient")),
    )  # fmt: skip
    memory = memory_of_program(program)
    assert memory.peak_allocated_bytes == 8 * SIZE  # parameter, state, old gradient, activation
    assert memory.categories["optimizer"] == 2 * SIZE
    assert memory.peak_reserved_bytes > 8 * SIZE
    there_before = stored(
        *((event.op, event.storage, event.bytes, event.category) for event in program.memory),
        resident=((0, SIZE, "parameter"), (3, SIZE, "other"), (4, SIZE, "other"), (9, SIZE, "gradient")),
    )
    assert memory.peak_reserved_bytes >= memory_of_program(there_before).peak_reserved_bytes


def test_what_is_found_under_another_name_of_its_kind_is_what_was_left() -> None:
    """A gradient of the step before is known by its size, whatever it was called."""
    program = stored(
        (0, 9, -SIZE, "other"), (1, 2, SIZE, "gradient"), resident=((0, SIZE, "parameter"), (9, SIZE, "other"))
    )  # fmt: skip
    memory = memory_of_program(program)
    assert memory.peak_allocated_bytes == 2 * SIZE
    assert memory.categories["gradients"] == SIZE


def test_of_what_was_left_each_goes_as_its_own_kind() -> None:
    """A gradient and an activation of one size: the gradient goes before the peak, the activation is there."""
    program = stored(
        (0, 1, -SIZE, "gradient"), (0, 5, 9 * SIZE, "temporary"), (1, 5, -9 * SIZE, "temporary"),
        (1, 2, -SIZE, "activation"), (2, 3, SIZE, "activation"), (2, 4, SIZE, "gradient"),
        resident=((1, SIZE, "gradient"), (2, SIZE, "activation")),
    )  # fmt: skip
    memory = memory_of_program(program, exact=True)
    assert memory.peak_allocated_bytes == 10 * SIZE
    assert (memory.categories["gradients"], memory.categories["activations"]) == (0, SIZE)


SIZES = (1 << 10, 3 << 20, 30 << 20, 700 << 20)


@st.composite
def programs(draw: st.DrawFn) -> RankProgram:
    """Storages that come and go; of those that are there at first some go, and some that come stay."""
    resident = [
        (number, draw(st.sampled_from(SIZES)), draw(st.sampled_from(("parameter", "optimizer", "gradient"))))
        for number in range(draw(st.integers(0, 5)))
    ]
    live = {number: (size, category) for number, size, category in resident}
    events = []
    for number in range(10, 10 + draw(st.integers(1, 20))):
        op = min(2, (number - 10) // 6)
        if live and draw(st.booleans()):
            gone = draw(st.sampled_from(sorted(live)))
            size, category = live.pop(gone)
            events.append((op, gone, -size, category))
        else:
            live[number] = (draw(st.sampled_from(SIZES)), draw(st.sampled_from(("activation", "gradient"))))
            events.append((op, number, *live[number]))
    return stored(*events, resident=tuple(resident))


@settings(max_examples=100, deadline=None)
@given(programs(), st.booleans())
def test_laws(program: RankProgram, expandable: bool) -> None:
    levels = [sum(event.bytes for event in program.resident)]
    for event in program.memory:
        levels.append(levels[-1] + event.bytes)
    exact = memory_of_program(program, exact=True)
    memory = memory_of_program(program, settings=AllocatorSettings(expandable_segments=expandable))
    # What a step finds without a counterpart that it leaves is there once: later steps have less.
    assert 0 <= exact.peak_allocated_bytes <= max(levels)
    assert exact.peak_allocated_bytes == max(0, *exact.allocated_bytes.tolist(), 0)
    assert memory.peak_reserved_bytes >= memory.peak_allocated_bytes >= exact.peak_allocated_bytes
    assert sum(memory.categories.values()) == memory.peak_allocated_bytes
    assert min(memory.categories.values()) >= 0
