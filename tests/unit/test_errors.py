"""Errors reach another process as they were."""

from __future__ import annotations

import pickle

import pytest

from windtunnel.errors import (
    InputFileError,
    LayoutError,
    ScheduleError,
    SpecError,
    UnknownNameError,
    UserError,
    WindtunnelError,
    about_file,
)
from windtunnel.faces.cli.app import main
from windtunnel.real.capture.processes.rank_server import ScriptError


@pytest.mark.parametrize(
    "error",
    [
        UserError("no"),
        SpecError("plan.tp", 3, "give 1, 2 or 4", "plan.yaml"),
        UnknownNameError("GPU", "h10", ("h100-sxm", "h200-sxm")),
        InputFileError("a.csv", "is empty", "give rows"),
        LayoutError("tp 3 does not divide 8", "use 2 or 4"),
        ScheduleError("waits for ever"),
        ScriptError("it failed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_way_between_processes(error: WindtunnelError) -> None:
    other = pickle.loads(pickle.dumps(error))
    assert type(other) is type(error)
    assert str(other) == str(error)
    assert vars(other) == vars(error)


def test_a_path_of_odd_characters_stands_in_one_line() -> None:
    with pytest.raises(UserError) as found, about_file("a\r\nb"):
        raise InputFileError("a\r\nb", "cannot be read", "give another")
    assert str(found.value) == "'a\\r\\nb': cannot be read; give another"


@pytest.mark.parametrize("words", [["ask"], ["plan"], ["fleet", "lint"], ["sweep"]])
def test_a_name_that_no_file_can_have_is_one_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    cluster = ["--cluster", "h100-sxm:1"] if words == ["plan"] else []
    assert main([*words, "9" * 5000, *cluster]) == 2
    message = capsys.readouterr().err
    assert "unknown model" in message if cluster else "too long" in message
    assert message.count("\n") == 1


def test_of_many_names_some_are_shown() -> None:
    few, many = (str(UnknownNameError("model", "zz", [f"m{at}" for at in range(count)])) for count in (40, 200))
    assert "m39" in few
    assert "in all" not in few
    assert many.count("m") < 30
    assert "(200 in all)" in many
