"""Memory of a captured program through the caching allocator: each stream has blocks of its own."""

from __future__ import annotations

import pytest

from windtunnel.capture.script.program import MemoryEvent, Op, RankProgram
from windtunnel.emulate.captured_memory import memory_of_program

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
