from __future__ import annotations

from windtunnel.cost.sustained import unaligned


def test_only_rows_that_sixteen_bytes_do_not_divide_take_longer():
    assert unaligned(50_304, 1024) == unaligned(8, 8) == 1.0
    by_rows = [unaligned(50_304 + odd, 4096) for odd in (8, 4, 2, 1)]
    assert by_rows == sorted(set(by_rows))
    assert unaligned(1024, 50_257) == unaligned(50_257, 1024)  # the input's gradient reads the same matrix
