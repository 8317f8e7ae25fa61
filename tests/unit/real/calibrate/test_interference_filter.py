"""Which points are measured again, and when."""

from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from windtunnel.real.calibrate.interference_filter import UNUSUAL, UnusualSpells


def test_what_lies_beside_an_unusual_look_is_measured_again_once_it_is_as_usual() -> None:
    spells: UnusualSpells[str] = UnusualSpells.from_references([1.0] * 5)
    for _ in range(5):
        spells.look(1.0)
        spells.measured("as usual")
    for reference, point in ((1.0, "before"), (1.05, "into it"), (1.4, "in it"), (1.4, "out of it")):
        spells.look(reference)
        assert spells.next_to_repeat() is None
        spells.measured(point)
    spells.look(1.02)
    assert spells.waiting() == ["into it", "in it", "out of it"]
    assert [spells.next_to_repeat() for _ in range(4)] == ["into it", "in it", "out of it", None]
    assert spells.waiting() == []


def test_what_was_quicker_than_usual_is_measured_again_too() -> None:
    """A core that is usually shared, and was not for a moment: no program will find it so."""
    spells: UnusualSpells[int] = UnusualSpells()
    for number, reference in enumerate((0.8, 0.8, 1.0, 1.0, 1.0, 1.0)):
        spells.look(reference)
        spells.measured(number)
    spells.look(1.0)
    assert spells.waiting() == [0, 1]


def test_nothing_is_measured_again_where_most_was_measured_in_no_usual_spell() -> None:
    """Spells are shorter than what lies between two looks: the next would be no better."""
    spells: UnusualSpells[int] = UnusualSpells()
    for number in range(20):
        spells.look((1.0, 1.3, 0.8, 1.0)[number % 4])
        spells.measured(number)
    spells.look(1.0)
    assert len(spells.waiting()) > 10
    assert spells.next_to_repeat() is None


def test_a_device_that_stays_slow_is_usual() -> None:
    spells: UnusualSpells[int] = UnusualSpells.from_references([1.0, 1.3])
    for number in range(20):
        spells.look(1.5)
        spells.measured(number)
    assert spells.waiting() == []


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=40))
def test_a_point_stands_only_where_both_looks_were_as_usual(looks: list[float]) -> None:
    spells: UnusualSpells[int] = UnusualSpells()
    for number, look in enumerate(looks):
        spells.look(look)
        spells.measured(number)
    usual = median(looks)
    off = [abs(look - usual) > UNUSUAL * usual for look in looks]
    assert spells.waiting() == [number for number in range(len(looks) - 1) if off[number] or off[number + 1]]
