"""Which points are measured again, and when."""

from hypothesis import given
from hypothesis import strategies as st

from windtunnel.calibrate.slow_spells import SLOW, SlowSpells


def test_what_lies_between_a_slow_look_and_a_calm_one_is_measured_again_once_it_is_calm() -> None:
    spells: SlowSpells[str] = SlowSpells()
    for reference, point in ((1.0, "before"), (1.05, "into it"), (1.4, "in it"), (1.4, "out of it")):
        spells.look(reference)
        assert spells.again() is None
        spells.measured(point)
    spells.look(1.02)
    assert [spells.again() for _ in range(4)] == ["into it", "in it", "out of it", None]


def test_a_device_that_stays_slow_measures_nothing_twice() -> None:
    spells: SlowSpells[int] = SlowSpells.after([1.0, 1.3])
    for number in range(20):
        spells.look(1.5)
        assert spells.again() is None
        spells.measured(number)
    assert len(spells.waiting) == 19


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=40))
def test_a_point_stands_only_where_both_looks_were_as_quick_as_the_quickest_so_far(looks: list[float]) -> None:
    spells: SlowSpells[int] = SlowSpells()
    stand = []
    for number, look in enumerate(looks):
        before = len(spells.waiting)
        spells.look(look)
        if number and len(spells.waiting) == before:
            stand.append(number - 1)
        spells.measured(number)
    for number in stand:
        for at in (number, number + 1):
            assert looks[at] <= (1.0 + SLOW) * min(looks[: at + 1])
