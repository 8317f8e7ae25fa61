"""`fabric`: laws of bandwidths, where ranks lie, and nccl-tests' output."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.errors import InputFileError, SpecError
from windtunnel.questions import ask
from windtunnel.studies.fabric import FabricResult, bus_factor, read_nccl_tests, sizes_of

# nccl-tests 2.13 on 8 GPUs, two rows as it prints them.
PRINTED = """# nThread 1 nGpus 8 minBytes 1048576 maxBytes 2147483648 step: 2(factor) warmup iters: 5 iters: 20
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    56.12   18.68   32.70      0    55.80   18.79   32.89      0
  1073741824     268435456     float     sum      -1   4012.3  267.61  468.32      0   4010.1  267.76  468.58      0
# Out of bounds values : 0 OK
"""


def of(**asked: object) -> FabricResult:
    found: FabricResult = ask({"question": "fabric", **asked})
    return found


def test_bus_bandwidth_is_algorithm_bandwidth_times_the_share_that_crosses_links() -> None:
    for collective, factor in (("all-reduce", 2 * 7 / 8), ("all-gather", 7 / 8), ("broadcast", 1.0)):
        for size in of(cluster="h100-sxm:8", collective=collective, bytes="1MiB..64MiB").sizes:
            assert size.algorithm_bandwidth == pytest.approx(size.bytes / size.seconds)
            assert size.bus_bandwidth == pytest.approx(factor * size.algorithm_bandwidth)
            assert size.p5_s < size.seconds < size.p95_s
            assert 0.0 < size.latency_s <= size.seconds


def test_more_bytes_and_more_domains_take_longer() -> None:
    times = [size.seconds for size in of(cluster="gb200:576", bytes="64MiB..8GiB").sizes]
    assert times == sorted(times)
    assert len(times) == 8
    rack = of(cluster="gb200:576", bytes="1GiB", ranks=72)
    across = of(cluster="gb200:576", bytes="1GiB", ranks=72, stride=8)
    assert (rack.placement.domains, rack.placement.groups) == (1, 8)
    assert across.placement.domains > 1
    assert across.sizes[0].seconds > rack.sizes[0].seconds


def test_what_nccl_tests_printed_is_held_against_it(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce.txt"
    path.write_text(PRINTED)
    assert read_nccl_tests(path) == pytest.approx({1048576: 56.12e-6, 1073741824: 4012.3e-6})
    found = of(cluster="h100-sxm:8", measured=str(path))
    assert [size.bytes for size in found.sizes] == [1048576, 1073741824]
    for size in found.sizes:
        assert size.measured_s is not None
        assert size.error == pytest.approx(size.seconds / size.measured_s - 1.0)
    # bus bandwidth by its own column: 468 GB/s
    measured = found.sizes[1].bytes / (found.sizes[1].measured_s or 0.0) * bus_factor("all_reduce", 8)
    assert measured == pytest.approx(468.32e9, rel=1e-4)
    path.write_text("# nothing\n")
    with pytest.raises(InputFileError, match="no rows"):
        read_nccl_tests(path)


@pytest.mark.parametrize("tag", ["", "[1,0]<stdout>:", "(head, rank=0, pid=3808) [1,0]<stdout>: "])
@pytest.mark.parametrize("columns", ["none      -1  ", "sum      -1  ", "  0  ", ""])
def test_times_of_any_length_are_read(tag: str, columns: str, tmp_path: Path) -> None:
    """10 ms and more are printed without a point (skypilot's all-gather on two A3 Ultra): once read as 347 us."""
    rows = ((1024, "28.70", "0.04"), (8388608, "87.98", "95.35"), (8589934592, "24739", "347.22"))
    path = tmp_path / "tests.txt"
    path.write_text(
        "".join(f"{tag}{size:12}  {size // 64}  float  {columns}  {us} {bw}  1.0  0\n" for size, us, bw in rows)
    )
    assert read_nccl_tests(path) == pytest.approx({size: float(us) * 1e-6 for size, us, _ in rows})


def test_sizes() -> None:
    assert sizes_of("64MiB") == [2**26]
    assert sizes_of("1KiB..5KiB") == [1024, 2048, 4096, 5120]
    for bad in ("8GiB..1MiB", "0B..1MiB", "1MiB..2MiB..3MiB", "big", "1MiB..1EiB"):
        with pytest.raises(SpecError, match="bytes"):
            sizes_of(bad)


def test_a_group_larger_than_the_cluster_is_refused() -> None:
    with pytest.raises(SpecError, match="ranks"):
        of(cluster="h100-sxm:8", ranks=16)
    with pytest.raises(SpecError, match="ranks"):
        of(cluster="h100-sxm:8", ranks=8, stride=2)
    with pytest.raises(SpecError, match="algorithm"):
        of(cluster="h100-sxm:16", algorithm="magic")


def test_a_slice_of_a_torus_is_named_with_its_rings() -> None:
    """And with fewer chips, a line."""
    assert of(cluster="tpu-v6e:128", bytes="1MiB").placement.crosses.endswith("slice 8x16 (line, ring)")
    assert "slice" not in of(cluster="h100-sxm:8", bytes="1MiB").placement.crosses
