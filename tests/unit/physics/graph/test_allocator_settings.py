"""What PYTORCH_ALLOC_CONF says, and what `max_split_size_mb` does to a replay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import SpecError
from windtunnel.physics.graph import replay_allocator
from windtunnel.physics.graph.allocator_settings import AllocatorSettings, allocator_settings, settings_in

MIB = 1 << 20


def test_settings_are_read() -> None:
    assert allocator_settings("") == AllocatorSettings()
    found = allocator_settings("expandable_segments:True, max_split_size_mb:128,roundup_power2_divisions:[256:1,>:4]")
    assert found == AllocatorSettings(True, 128 * MIB, ("roundup_power2_divisions",))
    assert not allocator_settings("expandable_segments:False").expandable_segments


@pytest.mark.parametrize(
    "text",
    ["expandable_segments:yes", "max_split_size_mb:20", "max_split_size_mb:x", "max_split_size_mb:²", "nonsense"],
)
def test_what_pytorch_would_refuse_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="allocator"):
        allocator_settings(text)


def test_the_new_name_of_the_variable_holds() -> None:
    assert settings_in({}) == ""
    assert settings_in({"PYTORCH_CUDA_ALLOC_CONF": "a:1"}) == "a:1"
    assert settings_in({"PYTORCH_CUDA_ALLOC_CONF": "a:1", "PYTORCH_ALLOC_CONF": "b:1"}) == "b:1"


def replayed(events: list[tuple[int, int]], most: int | None) -> tuple[int, int]:
    blocks, deltas = (np.array(column, np.int64) for column in zip(*events, strict=True))
    allocator = replay_allocator(blocks, deltas, max_split_bytes=most)
    return allocator.peak_allocated_bytes, allocator.peak_reserved_bytes


def test_a_large_block_serves_no_smaller_request() -> None:
    events = [(1, 100 * MIB), (1, -100 * MIB), (2, 40 * MIB), (3, 60 * MIB)]
    assert replayed(events, None) == (100 * MIB, 100 * MIB)
    assert replayed(events, 80 * MIB) == (100 * MIB, 200 * MIB)


def test_a_large_request_takes_a_large_block_with_little_to_spare() -> None:
    assert replayed([(1, 100 * MIB), (1, -100 * MIB), (2, 90 * MIB)], 50 * MIB)[1] == 100 * MIB
    assert replayed([(1, 100 * MIB), (1, -100 * MIB), (2, 70 * MIB)], 50 * MIB)[1] == 170 * MIB


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.booleans()), min_size=1, max_size=30))
def test_a_limit_above_all_sizes_changes_nothing(sizes: list[tuple[int, bool]]) -> None:
    events: list[tuple[int, int]] = []
    for number, (size, stays) in enumerate(sizes):
        events.append((number, size * MIB))
        if not stays:
            events.append((number, -size * MIB))
    assert replayed(events, 1 << 40) == replayed(events, None)
