"""Parts of a Result that are read off any step: parts that sum, bands, shares of sources."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.physics.cost.price import Z95, Source
from windtunnel.physics.cost.training import training_costs
from windtunnel.physics.step.band import FASTER, SLOWER, band_of
from windtunnel.physics.step.result_of import (
    ClassTime,
    Kernels,
    breakdown_of,
    own_spread,
    provenance_of,
    roofline_warning,
    sum_to,
)

KNOWN = {"gemm": 0.05, "gemm_moe": 0.2, "exposed": 0.3, "other": 0.5, "software": 0.03, "memory-bound": 0.2}

parts = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 10**12), min_size=1)


@given(parts, st.integers(0, 10**13))
def test_scaled_parts_sum_to_the_whole_and_each_is_one_of_the_two_integers_next_to_its_exact_share(
    given_parts: dict[str, int], total: int
) -> None:
    whole = sum(given_parts.values())
    found = sum_to(given_parts, total)
    if not whole:
        assert found == {}
        return
    assert sum(found.values()) == total
    exact = {name: Fraction(value * total, whole) for name, value in given_parts.items()}
    assert all(abs(found[name] - exact[name]) < 1 for name in found)
    # Who is rounded up has no smaller remainder than who is not.
    up = [exact[name] % 1 for name in found if found[name] > exact[name]]
    down = [exact[name] % 1 for name in found if found[name] < exact[name]]
    assert not up or not down or min(up) >= max(down)


def test_remainders_go_to_the_largest_and_among_equals_by_name() -> None:
    assert sum_to({"b": 1, "a": 1, "c": 1}, 5) == {"a": 2, "b": 2, "c": 1}
    assert sum_to({"a": 5, "b": 3, "c": 2}, 11) == {"a": 6, "b": 3, "c": 2}  # 5.5, 3.3, 2.2


def test_the_breakdown_is_the_mean_over_ranks_not_over_classes() -> None:
    classes = (ClassTime(3, 1, {"gemm": 3 * 80, "idle": 3 * 20}), ClassTime(1, 2, {"gemm": 40, "idle": 60}))
    mean, stages = breakdown_of(classes, {"waiting": 10, "none": 0}, 110)
    assert mean == {"gemm": 70, "idle": 30, "waiting": 10}
    assert list(mean) == ["gemm", "idle", "waiting"]
    assert [stage.breakdown_ns for stage in stages] == [
        {"gemm": 80, "idle": 20, "waiting": 10},
        {"gemm": 40, "idle": 60, "waiting": 10},
    ]
    assert [(stage.stage, stage.ranks, stage.layers) for stage in stages] == [(0, 3, 1), (1, 1, 2)]


def test_the_band_is_wider_above_and_adds_independent_parts() -> None:
    low, high, _ = band_of({"gemm": 100}, 0.0, KNOWN, experts=False)
    z = Z95 * (0.05**2 + 0.03**2) ** 0.5
    assert (low, high) == pytest.approx((1 / (1 + FASTER * z), 1 + SLOWER * z))
    assert high - 1 > 1 / low - 1
    half = Z95 * ((0.5 * 0.05) ** 2 + (0.5 * 0.3) ** 2 + 0.03**2) ** 0.5
    band = band_of({"gemm": 50, "exposed dp (scale-out)": 50}, 0.0, KNOWN, experts=False)
    assert band[:2] == pytest.approx((1 / (1 + FASTER * half), 1 + SLOWER * half))
    assert band.reason == "mostly exposed dp (scale-out)"


def test_a_kernels_own_band_counts_where_it_is_wider_and_for_kernels_only() -> None:
    usual = band_of({"gemm": 100}, 0.0, KNOWN, experts=False)
    assert band_of({"gemm": 100}, 2 * Z95 * 0.04, KNOWN, experts=False) == usual
    assert band_of({"gemm": 100}, 2 * Z95 * 0.4, KNOWN, experts=False)[1] > usual[1] + 0.3
    exposed = {"exposed tp (scale-up)": 100}
    assert band_of(exposed, 2 * Z95 * 0.9, KNOWN, experts=False) == band_of(exposed, 0.0, KNOWN, experts=False)


def test_kernels_bands_count_on_a_gpu_that_runs_informed_only_as_far_as_nobody_timed_the_kernels() -> None:
    runs, none = (training_costs(name) for name in ("hopper", "cdna3"))
    timed, guessed = ({source: 1.0} for source in (Source.FITTED, Source.ROOFLINE))
    half = {Source.FITTED: 1.0, Source.ROOFLINE: 1.0}
    assert own_spread(Kernels(10.0, 4.0, timed), runs) == 0.0
    assert own_spread(Kernels(10.0, 4.0, half), runs) == pytest.approx(0.2)
    assert own_spread(Kernels(10.0, 4.0, guessed), runs) == own_spread(Kernels(10.0, 4.0, timed), none) == 0.4
    assert own_spread(Kernels(0.0, 0.0, {}), none) == 0.0


def test_products_of_routed_experts_have_a_band_of_their_own() -> None:
    dense, routed = (band_of({"gemm": 100}, 0.0, KNOWN, experts=experts) for experts in (False, True))
    assert routed[0] < dense[0] < 1 < dense[1] < routed[1]
    no_products = {"memory-bound": 100}
    assert band_of(no_products, 0.0, KNOWN, experts=True) == band_of(no_products, 0.0, KNOWN, experts=False)


def test_shares_of_sources_sum_to_one_and_roofline_is_said_where_it_is_much() -> None:
    provenance = provenance_of({Source.MEASURED: 3.0, Source.ROOFLINE: 1.0})
    assert sum(provenance.values()) == 1.0
    assert provenance["measured"] == 0.75
    assert set(provenance) == {source.name.lower() for source in Source}
    assert list(roofline_warning(provenance, "X100")) == [
        "25% of busy time is priced by roofline: no measured kernels for it on X100"
    ]
    assert list(roofline_warning({"roofline": 0.1}, "X100")) == []
