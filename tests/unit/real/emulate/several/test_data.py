"""What real ranks hand each other, by place."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from windtunnel.real.emulate.several.data import _split  # noqa: E402


@pytest.mark.parametrize(
    ("length", "rows", "parts"), [(8, (), [2] * 4), (0, (), [0] * 4), (3, (0, 2, 1, 0), [0, 2, 1, 0])]
)
def test_there_is_a_part_for_each_member_though_it_is_empty(
    length: int, rows: tuple[int, ...], parts: list[int]
) -> None:
    """Experts that no token was routed to exchange nothing, and exchange it all the same."""
    assert [len(part) for part in _split(torch.empty(length, 3), rows, 4)] == parts
