"""The encoder of typed answers, and the checks of their figures."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest

from windtunnel.questions.typed import check_figures, check_sum, plain


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Whole:
    JSON_LEAVES_OUT: ClassVar = ("heavy",)

    parts: tuple[Part, ...]
    shares: dict[str, float]
    wall_s: float
    heavy: object = None

    def __post_init__(self) -> None:
        check_figures(self, unbounded=("wall_s",))


def test_names_that_are_known_are_listed_with_their_short_ones() -> None:
    from windtunnel.questions.asked.parts import ClusterPart
    from windtunnel.questions.fields import unknown

    assert "scale_out (nic)" in unknown(ClusterPart, "network", "cluster.")


def test_an_answer_is_plain_data_by_the_names_of_its_fields() -> None:
    whole = Whole((Part("a", 1.5), Part("b", None)), {"a": 0.25}, 2.0, heavy=object())
    wanted = {"parts": [{"name": "a", "seconds": 1.5}, {"name": "b", "seconds": None}], "shares": {"a": 0.25}}
    assert plain(whole) == {**wanted, "wall_s": 2.0}
    assert json.loads(json.dumps(plain(whole))) == plain(whole)


def test_what_has_no_form_in_json_is_no_answer() -> None:
    with pytest.raises(AssertionError, match="no form in JSON"):
        plain({"when": object()})


@pytest.mark.parametrize("wall_s", [-1.0, math.nan, -math.inf])
def test_a_figure_is_finite_and_not_negative(wall_s: float) -> None:
    with pytest.raises(AssertionError, match=r"Whole\.wall_s"):
        Whole((), {}, wall_s)
    assert Whole((), {}, math.inf).wall_s == math.inf  # said to be unbounded


def test_parts_make_up_their_whole() -> None:
    check_sum({"a": 0.1, "b": 0.2}, 0.3)
    with pytest.raises(AssertionError, match="add up to"):
        check_sum({"a": 0.1, "b": 0.2}, 0.31)
