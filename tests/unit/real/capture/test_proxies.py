"""Who is like whom among members of a group of which some are real."""

from hypothesis import given
from hypothesis import strategies as st

from windtunnel.studies.programs.rank_classes.proxies import Proxies, proxies_among


@st.composite
def groups(draw: st.DrawFn) -> Proxies:
    size = draw(st.integers(1, 40))
    real = draw(st.sets(st.integers(0, size - 1), min_size=1))
    return Proxies(size, tuple(sorted(real)))


@given(groups())
def test_every_member_is_like_one_real_member_and_real_ones_are_themselves(proxies: Proxies) -> None:
    assert sorted(proxies.of_place) == list(range(proxies.size))
    assert all(proxies.of_place[place] == number for number, place in enumerate(proxies.real))
    assert sum(proxies.weights) == proxies.size
    assert max(proxies.weights) - min(proxies.weights) <= 1
    assert proxies.even == (proxies.weights[0] if len(set(proxies.weights)) == 1 else 0)


@given(groups())
def test_stretches_are_the_places_that_they_stand_for(proxies: Proxies) -> None:
    for places, runs in zip(proxies.like, proxies.runs, strict=True):
        assert [place for first, last in runs for place in range(first, last)] == list(places)


def test_members_are_named_by_their_ranks() -> None:
    assert proxies_among((10, 20, 30, 40), {40, 20, 7}) == Proxies(4, (1, 3))
    assert Proxies(4, (1, 3)).like == ((0,), (2,))
