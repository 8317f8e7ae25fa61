"""What is told of a script that raised."""

from windtunnel.errors import UserError
from windtunnel.real.capture.processes.script_errors import traceback_of_script
from windtunnel.real.emulate.clock.compute_time import ComputeTime


def test_a_traceback_shows_the_scripts_frames_and_none_of_ours() -> None:
    """The script's function is called by ours, as hooks are, and its error is the cause of another."""

    def hook() -> None:
        raise ValueError("of the script")

    def script() -> None:
        try:
            ComputeTime().around(hook)()
        except ValueError as error:
            raise RuntimeError("again") from error

    try:
        script()
    except RuntimeError as error:
        text = traceback_of_script(error)
    assert text.startswith("Traceback (most recent call last):")
    assert "compute_time.py" not in text
    assert text.index("in hook") < text.index("ValueError: of the script") < text.index("RuntimeError: again")


def test_what_windtunnel_refuses_has_no_traceback() -> None:
    assert traceback_of_script(UserError("one line")) == ""
