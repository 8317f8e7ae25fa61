"""`windtunnel whatif RUN --set ...`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from windtunnel.cli.predict import answered, predict
from windtunnel.errors import InputFileError, SpecError

if TYPE_CHECKING:
    from windtunnel.result import Result

DISTURBING = ("slow", "jitter", "samples", "router_load", "lengths")  # parameters of `predict` that `slow.none` drops


def whatif(
    run: str,
    /,
    *,
    set: Annotated[
        tuple[str, ...],
        Parameter(
            name="--set",
            negative="",
            help="What is different: cluster.nic=800Gb/s, plan.tp=4, model.layers=64; slow.none mends everything,"
            " slow.without=gpu=1037:1.15 one thing. Repeatable.",
        ),
    ] = (),
    slow: Annotated[tuple[str, ...], Parameter(negative="", help="Something more that is slow, as in predict.")] = (),
    json: Annotated[bool, Parameter(negative="", help="Print the comparison as JSON.")] = False,
    out: Annotated[Path, Parameter(help="Where run folders are looked for and go.")] = Path("runs"),
    save: Annotated[bool, Parameter(negative="--no-save", help="Save a run folder of the new answer.")] = True,
) -> None:
    """Ask a saved run again with something changed, and show what that does.

    Parameters
    ----------
    run
        A run folder, its result.json, or the first digits of its hash.
    """
    from windtunnel.cli.output import note, print_json, stdout, working
    from windtunnel.report.compare import compare
    from windtunnel.report.compare_console import print_comparison
    from windtunnel.report.run_folder import load
    from windtunnel.report.run_folder import save as save_run

    if not set and not slow:
        raise SpecError("--set", None, "say what is different, such as cluster.nic=800Gb/s or slow.none")
    before = load(run, out)
    with working("predicting"):
        arguments = changed(arguments_of(before, run), set, slow)
        after = answered(arguments.pop("model"), **arguments)
    comparison = compare(before, after)
    if before.spec["version"] != after.spec["version"]:
        note(
            f"{run} was made by version {before.spec['version']}, this is {after.spec['version']}:"
            " not all that differs is the change"
        )
    if json:
        print_json(comparison.to_dict())
    else:
        print_comparison(comparison, stdout())
    if save:
        note(f"wrote {save_run(after, out)}")


def arguments_of(result: Result, run: str) -> dict[str, Any]:
    """The arguments of `predict` that gave a result. Raises InputFileError where its command cannot be read."""
    words = shlex.split(result.reproduce)
    if words[:2] != ["windtunnel", "predict"]:
        raise InputFileError(run, "does not say by which `windtunnel predict` it was made", "predict it again")
    app = App()
    app.default(predict)
    _, bound, _ = app.parse_args(words[2:], exit_on_error=False, print_error=False)
    return dict(bound.arguments)


def changed(arguments: dict[str, Any], settings: Sequence[str], slow: Sequence[str]) -> dict[str, Any]:
    """`arguments` with what `--set` and `--slow` say. Raises SpecError for a `slow.` that means nothing here."""
    arguments = dict(arguments)
    kept = list(arguments.get("slow", ()))
    for text in settings:
        key, _, value = text.partition("=")
        if key == "slow.none":
            for name in DISTURBING:
                arguments.pop(name, None)
            kept = []
        elif key == "slow.without":
            if value not in kept:
                known = ", ".join(kept) or "nothing"
                raise SpecError("--set slow.without", value, f"the run has {known} slow")
            kept.remove(value)
        elif key.startswith("slow."):
            raise SpecError("--set", text, "use slow.none, slow.without=ONE, or add with --slow")
    arguments["slow"] = (*kept, *slow)
    others = tuple(text for text in settings if not text.startswith("slow."))
    arguments["set"] = (*arguments.get("set", ()), *others)
    return arguments
