"""`windtunnel ask FILE [--set PATH=VALUE]` and `windtunnel schema VERB`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windtunnel.errors import SpecError
from windtunnel.faces.cli.flags import spelled
from windtunnel.faces.cli.output import print_json
from windtunnel.files.bytes import path_of
from windtunnel.files.document import read_mapping
from windtunnel.questions import QUESTIONS, read
from windtunnel.questions import schema as schema_of
from windtunnel.questions.words import with_settings, words


def ask(
    file: str,
    /,
    *,
    set: Annotated[
        tuple[str, ...],
        Parameter(name="--set", negative="", help="What is different: plan.tp=4, cluster.nic=800Gb/s. Repeatable."),
    ] = (),
    report: Annotated[Path | None, Parameter(help="Write a report here.")] = None,
    trace: Annotated[Path | None, Parameter(help="Write a timeline for Perfetto here.")] = None,
    rows: Annotated[Path | None, Parameter(help="Write the answer's table of rows here.")] = None,
    json: Annotated[bool, Parameter(negative="", help="Print the answer as JSON.")] = False,
    out: Annotated[Path | None, Parameter(help="Where run folders go (runs).")] = None,
    save: Annotated[bool, Parameter(negative="--no-save", help="Save a run folder.")] = True,
) -> object:
    """Ask the question of a file, such as question.yaml of a run folder.

    Parameters
    ----------
    file
        A question in YAML or JSON: `question: predict/1` and its fields; `windtunnel schema VERB` has them.
    """
    path = path_of(file)
    if path.is_dir():
        path = path / "question.yaml"
    question = read(read_mapping(path, "a question is lines of `field: value`, see `windtunnel schema`"), str(path))
    if not QUESTIONS[question.verb].pure:  # it runs programs, writes or listens: no file may ask for that
        raise SpecError("question", question.verb, "is asked by its own flags only", str(path))
    if set:
        question = with_settings(question, set)
    places = {"report": report, "trace": trace, "rows": rows, "out": out}
    arguments = [*question.verb.split(), *words(question)]
    for name, place in places.items():
        if place is not None:
            arguments.append(f"--{name}={place}")
    arguments += ["--json"] if json else []
    arguments += [] if save else ["--no-save"]
    from windtunnel.faces.cli.app import build

    app = build(arguments[0])
    return app(spelled(arguments), exit_on_error=False, print_error=False)


def schema(
    verb: Annotated[str, Parameter(help="A verb that asks a question, e.g. predict, or `survive spot`.")], /, *more: str
) -> None:
    """Print the JSON schema of a verb's question, as `windtunnel ask` reads it."""
    print_json(schema_of(" ".join([verb, *more])))
