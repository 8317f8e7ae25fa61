"""`whatif`: what a result becomes with something changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.physics.step.result import Result
from windtunnel.questions.asked.parts.scenario import CALM, Scenario
from windtunnel.questions.asked.predict import Predict
from windtunnel.questions.old import question_of
from windtunnel.questions.typed import check, texts
from windtunnel.questions.words import with_settings
from windtunnel.studies.predict import answer

CAPTURED_HASH = "@"
BESIDE_SLOW = ("jitter", "router load", "lengths")  # disturbances with a flag of their own, as results name them


def ask_again(result: Result, *changes: str, slow: Sequence[str] = (), run: str = "") -> Result:
    """What a result becomes with something changed: `windtunnel whatif` for Python, without advice.

    `changes`: as `--set` takes them: `cluster.nic=800Gb/s`, `plan.tp=4`, `model.layers=64`, `slow.none`,
    `slow.without=gpu=1037:1.15`. `slow`: disturbances that come on top. `run`: what errors call the result.
    Raises UserError where a change means nothing, and InputFileError where the result does not say how it was made or
    was made from files that are not there.
    """
    check(locals(), result=Result, run=str)
    changes, slow = texts("changes", changes), texts("slow", slow)
    if not changes and not slow:
        raise UserError("nothing is different: give a change, such as cluster.nic=800Gb/s or slow.none, or slow")
    return answer(changed_question(question_of_result(result, run or f"run {result.content_hash}"), changes, slow))


def question_of_result(result: Result, run: str) -> Predict:
    """The question that gave a result.

    Raises InputFileError where it does not say it, or was made from files that are not there.
    """
    try:
        question = question_of({"question": result.question, "reproduce": result.reproduce})
    except UserError:
        problem = "does not say by which `windtunnel predict` it was made"
        raise InputFileError(run, problem, "predict it again") from None
    for path in _files(question):
        if not path.exists():
            problem = f"was predicted from {path}, which is not in {Path.cwd()}"
            remedy = "run whatif where that file is; a model or cluster that was given in Python has to be saved there"
            raise InputFileError(run, problem, remedy)
    predict: Predict = question
    return predict


def changed_question(question: Predict, texts: Sequence[str], slow: Sequence[str] = ()) -> Predict:
    """The question with what `--set` and `--slow` say. Raises SpecError for a change that means nothing here."""
    scenario = question.scenario
    others = []
    for text in texts:
        key, _, value = (part.strip() for part in text.partition("="))
        if key == "slow.none" and not value:
            scenario = Scenario(seed=scenario.seed)
        elif key == "slow.without":
            scenario = _mended(scenario, value)
        elif key == "slow" or key.startswith("slow."):
            raise SpecError("--set", text, "use slow.none, slow.without=ONE, or add with --slow")
        else:
            others.append(text)
    question = replace(question, scenario=replace(scenario, slow=(*scenario.slow, *slow)))
    changed: Predict = with_settings(question, others)
    return changed


def _mended(scenario: Scenario, value: str) -> Scenario:
    """Without one disturbance, which is named as it was asked for or as results print it."""
    other = next((name for name in BESIDE_SLOW if value.replace("-", " ").replace("_", " ").startswith(name)), "")
    there = {name: name.replace(" ", "_") for name in BESIDE_SLOW if getattr(scenario, name.replace(" ", "_"))}
    if value in scenario.slow:
        at = scenario.slow.index(value)
        return replace(scenario, slow=(*scenario.slow[:at], *scenario.slow[at + 1 :]))
    if other in there:
        return replace(scenario, **{there[other]: getattr(CALM, there[other])})
    text = ", ".join([*scenario.slow, *there])
    raise SpecError("--set slow.without", value, f"give one of {text}" if text else "the run has no disturbance")


def _files(question: Predict) -> list[Path]:
    """Files that a prediction reads, as they are named in its question."""
    model, cluster = question.model.base, question.cluster.base or ""
    head, colon, count = cluster.rpartition(":")
    machine = head if colon and count.isdigit() else cluster
    folder = model.rpartition(CAPTURED_HASH)[0]  # of a captured folder, named with its content's hash
    at = folder if folder and not Path(model).exists() else model
    names = [at] if at.startswith((".", "/")) or at.endswith(".json") else []
    names += [machine] if machine.lower().endswith((".yaml", ".yml", ".json")) else []
    texts = [text for text in (question.scenario.router_load, question.scenario.lengths) if text]
    names += [text for text in texts if not text.startswith("zipf:")]
    return [Path(name) for name in names]
