"""Which rows drafted, told by where a table lists them: jobs lie together, nothing measured is looked at."""

from __future__ import annotations

from windtunnel.evidence.accuracy.serving.recipes import recipes_of
from windtunnel.evidence.accuracy.serving.rows import ServingRow
from windtunnel.evidence.accuracy.serving.run import drafting_told

SIDES = {f"{side}_{name}": value for side in ("prefill", "decode") for name, value in (("tp", "8"), ("moe_ep", "8"))}
DAY = {
    "source": "2026-03-25",
    "spec_level": "B",
    "model": "deepseek-ai/DeepSeek-R1",
    "model_family": "deepseek-v3",
    "gpu": "b200_sxm",
    "engine": "sglang",
    "measured": "2026-03-18",
    "precision": "fp8",
    "mode": "disagg",
    "isl": "1024",
    "osl": "1024",
    **SIDES,
}
ORDER = (8, 128, 32, 16, 512, 256, 128, 32, 16)  # 8 and 512 are of the lists that draft, 256 of the one that does not


def _day(order: tuple[int, ...]) -> list[ServingRow]:
    return [
        ServingRow({**DAY, "id": f"a_c{load}_tp8_{500 + place}", "concurrency": str(load)})
        for place, load in enumerate(order)
    ]


def test_both_readings_are_open_to_a_row_alone() -> None:
    (row,) = _day((32,))
    assert {one.drafted > 0 for one in recipes_of(row)} == {True, False}
    assert drafting_told([row], {}) == {}


def test_rows_beside_those_that_are_known_are_read_like_them() -> None:
    told = drafting_told(_day(ORDER), {})
    assert [told.get(row.id) for row in _day(ORDER)] == [None, True, True, True, None, None, False, False, False]


def test_the_order_of_lines_and_what_was_measured_do_not_matter() -> None:
    rows = [ServingRow({**row.fields, "tpot_ms": str(place)}) for place, row in enumerate(_day(ORDER))]
    assert drafting_told(rows[::-1], {}) == drafting_told(_day(ORDER), {})


def test_a_day_whose_jobs_ran_side_by_side_tells_nothing() -> None:
    mixed = (8, 256, 4, 512, 8, 256, 32, 32)
    rows = _day(mixed)
    assert all(rows[place].id not in drafting_told(rows, {}) for place in (6, 7))
