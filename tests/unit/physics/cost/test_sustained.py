from __future__ import annotations

from windtunnel.physics.cost.kernels import kernel_costs
from windtunnel.physics.cost.sustained import sustained_gemm, unaligned
from windtunnel.physics.cost.training import training_costs
from windtunnel.physics.hardware.catalogue import get_gpu


def test_only_rows_that_sixteen_bytes_do_not_divide_take_longer():
    assert unaligned(50_304, 1024) == unaligned(8, 8) == 1.0
    by_rows = [unaligned(50_304 + odd, 4096) for odd in (8, 4, 2, 1)]
    assert by_rows == sorted(set(by_rows))
    assert unaligned(1024, 50_257) == unaligned(50_257, 1024)  # the input's gradient reads the same matrix


def test_a_gpu_with_more_power_for_the_same_peak_sustains_more():
    """GB300 has 1,400 W for the dense FP8 that GB200 has 1,200 W for; long products of both are held by power."""
    ours, older = get_gpu("gb300"), get_gpu("gb200")
    assert ours.peak_flops("fp8") == older.peak_flops("fp8")
    costs = training_costs("blackwell")
    seconds = [sustained_gemm(kernel_costs(one), costs, 65536, 16384, 16384, "fp8").seconds for one in (older, ours)]
    assert seconds[0] / seconds[1] >= 0.99 * ours.tdp_w / older.tdp_w
