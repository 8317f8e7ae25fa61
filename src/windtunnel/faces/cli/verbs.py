"""The verbs of the command line, each made when it is asked: `--help` of one imports no other."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from cyclopts import App

from windtunnel.faces.cli.flags import app_of, help_of

# The module has COMMANDS, those that begin with the verb's name among them, or a function of that name.
VERBS = (
    "predict", "diagnose", "decide", "check", "plan", "sweep", "whatif", "compare", "explain", "launch", "runs",
    "serve", "rl", "fabric", "nic", "techniques", "fleet", "survive", "watch", "validate", "calibrate", "capture",
    "run", "ui", "mcp", "ask", "schema", "model", "version",
)  # fmt: skip
LAUNCHERS = ("capture", "run")  # take a launch line: what follows the script is the script's
HOME = {"schema": "ask"} | dict.fromkeys(
    ("nic", "fabric", "rl", "compare", "explain", "decide", "techniques", "watch", "whatif"), "answered"
)


def command_of(verb: str, *, everything: bool = False) -> App | Callable[..., object]:
    """What cyclopts takes for a verb; `everything`: its rare flags are listed."""
    module = import_module(f"windtunnel.faces.cli.{HOME.get(verb, verb)}")
    commands = [row for row in getattr(module, "COMMANDS", ()) if row.verb.split()[0] == verb]
    if not commands:
        verb_function: Callable[..., object] = getattr(module, verb)
        return verb_function
    return app_of(verb, commands, everything=everything)


def listed_command(verb: str) -> Callable[..., object]:
    """A verb that asks a question, in the list of all: its line of help alone."""

    def unasked() -> None:
        raise AssertionError(f"{verb} is listed, not asked")

    unasked.__name__, unasked.__doc__ = verb, help_of(verb)
    return unasked
