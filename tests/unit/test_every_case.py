"""A test over many cases names all that fail, and is skipped only where each of them is."""

import pytest
from every_case import over


def test_a_case_that_is_skipped_hides_none_that_fails() -> None:
    @over("number", [1, 2, 3])
    def check(number: int) -> None:
        if number == 2:
            pytest.skip("not here")
        assert number != 1

    with pytest.raises(BaseExceptionGroup, match="1 of 3: 1"):
        check()


def test_where_all_are_skipped_so_is_the_test() -> None:
    @over("number", [1, 2])
    def check(number: int) -> None:
        pytest.skip("not here")

    with pytest.raises(pytest.skip.Exception, match="1: not here; 2: not here"):
        check()
