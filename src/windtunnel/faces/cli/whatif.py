"""`windtunnel whatif RUN --set ...`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from windtunnel.arguments import typed
from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.faces.cli.output import note, print_answer, stdout, working
from windtunnel.faces.cli.plan_flags import switches_spelled_out
from windtunnel.faces.cli.predict import answered, predict
from windtunnel.questions.scenario import CALM, NAMES, Scenario

if TYPE_CHECKING:
    from windtunnel.physics.step.result import Result

CAPTURED_HASH = "@"
BESIDE_SLOW = ("jitter", "router load", "lengths")  # disturbances with a flag of their own, as results name them


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
    out: Annotated[Path, Parameter(help="Where run folders are looked for and go (runs).")] = Path("runs"),
    save: Annotated[bool, Parameter(negative="--no-save", help="Save a run folder of the new answer.")] = True,
) -> None:
    """Ask a saved run again with something changed, and show what that does.

    Parameters
    ----------
    run
        A run folder, its result.json, or the first digits of its hash.
    """
    from windtunnel.faces.report.comparison.compare import compare
    from windtunnel.faces.report.comparison.console import print_comparison
    from windtunnel.faces.report.run_folder import load
    from windtunnel.faces.report.run_folder import save as save_run

    if not set and not slow:
        raise UserError("nothing is different: add --set, such as cluster.nic=800Gb/s or slow.none, or --slow")
    before = load(run, out)
    with working("predicting"):
        after = ask_again(before, *set, slow=slow, run=run)
    comparison = compare(before, after)
    made_by, now = before.spec.get("version"), after.spec["version"]
    older = f"{run} was made by version {made_by or 'unknown'}, this is {now}: not all that differs is the change"
    warnings = [older] if made_by != now else []
    for text in warnings:
        note(text)
    if json:
        print_answer("whatif", comparison.to_dict(), warnings=warnings)
    else:
        print_comparison(comparison, stdout())
    if save:
        note(f"wrote {save_run(after, out)}")


@typed
def ask_again(result: Result, *changes: str, slow: Sequence[str] = (), run: str = "") -> Result:
    """What a result becomes with something changed: `windtunnel whatif` for Python, without advice.

    `changes`: as `--set` takes them: `cluster.nic=800Gb/s`, `plan.tp=4`, `model.layers=64`, `slow.none`,
    `slow.without=gpu=1037:1.15`. `slow`: disturbances that come on top. `run`: what errors call the result.
    Raises UserError where a change means nothing, and InputFileError where the result does not say how it was made or
    was made from files that are not there.
    """
    if not changes and not slow:
        raise UserError("nothing is different: give a change, such as cluster.nic=800Gb/s or slow.none, or slow")
    arguments = changed(arguments_of(result, run or f"run {result.content_hash}"), changes, slow)
    return answered(arguments.pop("model"), **{**arguments, "advice": False})


def arguments_of(result: Result, run: str) -> dict[str, Any]:
    """The arguments of `answered` that gave a result.

    Raises InputFileError where its command cannot be read, or names files that are not there.
    """
    try:
        words = shlex.split(result.reproduce)
        if words[:2] != ["windtunnel", "predict"]:
            raise ValueError(words)
        app = App()
        app.default(predict)
        spelled = switches_spelled_out(words[2:])
        _, bound, _ = app.parse_args(spelled, exit_on_error=False, print_error=False)
    except (ValueError, CycloptsError):
        problem = "does not say by which `windtunnel predict` it was made"
        raise InputFileError(run, problem, "predict it again") from None
    arguments = dict(bound.arguments)
    arguments["scenario"] = Scenario(**{name: arguments.pop(name) for name in NAMES if name in arguments})
    for path in _files(arguments):
        if not path.exists():
            problem = f"was predicted from {path}, which is not in {Path.cwd()}"
            remedy = "run whatif where that file is; a model or cluster that was given in Python has to be saved there"
            raise InputFileError(run, problem, remedy)
    return arguments


def changed(arguments: Mapping[str, Any], settings: Sequence[str], slow: Sequence[str]) -> dict[str, Any]:
    """`arguments` with what `--set` and `--slow` say. Raises SpecError for a `slow.` that means nothing here."""
    scenario: Scenario = arguments["scenario"]
    for text in settings:
        key, _, value = (part.strip() for part in text.partition("="))
        if key == "slow.none" and not value:
            scenario = Scenario(seed=scenario.seed)
        elif key == "slow.without":
            scenario = _mended(scenario, value)
        elif key.startswith("slow"):
            raise SpecError("--set", text, "use slow.none, slow.without=ONE, or add with --slow")
    others = tuple(text for text in settings if not text.startswith("slow."))
    scenario = replace(scenario, slow=(*scenario.slow, *slow))
    return {**arguments, "scenario": scenario, "set": (*arguments.get("set", ()), *others)}


def _mended(scenario: Scenario, value: str) -> Scenario:
    """Without one disturbance, which is named as it was asked for or as results print it."""
    other = next((name for name in BESIDE_SLOW if value.replace("-", " ").replace("_", " ").startswith(name)), "")
    there = {name: name.replace(" ", "_") for name in BESIDE_SLOW if getattr(scenario, name.replace(" ", "_"))}
    if value in scenario.slow:
        at = scenario.slow.index(value)
        return replace(scenario, slow=(*scenario.slow[:at], *scenario.slow[at + 1 :]))
    if other in there:
        return replace(scenario, **{there[other]: getattr(CALM, there[other])})
    known = ", ".join([*scenario.slow, *there])
    raise SpecError("--set slow.without", value, f"give one of {known}" if known else "the run has no disturbance")


def _files(arguments: Mapping[str, Any]) -> list[Path]:
    """Files that a prediction reads, as they are named in its command."""
    model, cluster = arguments["model"], arguments["cluster"]
    head, colon, count = cluster.rpartition(":")
    machine = head if colon and count.isdigit() else cluster
    folder = model.rpartition(CAPTURED_HASH)[0]  # of a captured folder, named with its content's hash
    at = folder if folder and not Path(model).exists() else model
    named = [at] if at.startswith((".", "/")) or at.endswith(".json") else []
    named += [machine] if machine.lower().endswith((".yaml", ".yml", ".json")) else []
    scenario = arguments["scenario"]
    texts = [str(given) for given in (scenario.router_load, scenario.lengths) if given]
    named += [text for text in texts if not text.startswith("zipf:")]
    return [Path(name) for name in named]
