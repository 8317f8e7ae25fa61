"""Times beyond the sizes that were measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.physics.cost.inference.surface import Curve


@given(st.floats(-0.2, 0.2), st.floats(1.5, 16.0))
def test_noise_of_the_last_neighbour_is_not_drawn_out(noise: float, times: float) -> None:
    """A line of 1 s a size, of which only the last but one is noisy: beyond it, it is still that line."""
    sizes = (1024.0, 2048.0, 4096.0, 6144.0, 8192.0)
    seconds = (*sizes[:3], sizes[3] * (1.0 + noise), sizes[4])
    assert Curve(sizes, seconds).at(times * 8192.0) == pytest.approx(times * 8192.0)


def test_work_beyond_a_flat_table_is_still_work() -> None:
    flat = Curve((1.0, 2.0, 4.0), (3.0, 3.0, 3.0))
    assert flat.at(8.0) == pytest.approx(4.5)
    assert Curve((4.0,), (2.0,)).at(8.0) == pytest.approx(4.0)
