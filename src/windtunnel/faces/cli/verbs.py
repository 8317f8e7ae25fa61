"""The verbs of the command line, each made when it is asked: `--help` of one imports no other."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from cyclopts import App

from windtunnel.questions.registry import QUESTIONS

# The module has a function of the verb's name, or one, `VERB_app`, that makes what cyclopts takes.
VERBS = (
    "predict", "diagnose", "decide", "check", "plan", "sweep", "whatif", "compare", "explain", "launch", "runs",
    "serve", "rl", "fabric", "nic", "techniques", "fleet", "survive", "watch", "validate", "calibrate", "capture",
    "run", "ui", "mcp", "ask", "schema", "model", "version",
)  # fmt: skip
LAUNCHERS = ("capture", "run")  # take a launch line: what follows the script is the script's
HOME = {"schema": "ask"} | dict.fromkeys(("nic", "fabric", "rl", "compare", "explain", "decide"), "answered")
GROUPS = {  # of verbs that are several: the line of help of them all
    "runs": "List saved runs, newest first; search, tag and delete them.",
    "calibrate": "Measure the device at hand, so that predictions rest on what it really does.",
}


def made(verb: str, *, everything: bool = False) -> App | Callable[..., object]:
    """What cyclopts takes for a verb; `everything`: its rare flags are listed."""
    module = import_module(f"windtunnel.faces.cli.{HOME.get(verb, verb)}")
    maker = getattr(module, f"{verb}_app", None)
    found: App | Callable[..., object] = getattr(module, verb) if maker is None else maker(everything=everything)
    return found


def named(verb: str) -> Callable[..., object]:
    """A verb that asks a question, in the list of all: its line of help alone."""

    def unasked() -> None:
        raise AssertionError(f"{verb} is listed, not asked")

    unasked.__name__, unasked.__doc__ = verb, help_of(verb)
    return unasked


def help_of(verb: str) -> str:
    """Its line of help."""
    return GROUPS[verb] if verb in GROUPS else QUESTIONS[verb].text
