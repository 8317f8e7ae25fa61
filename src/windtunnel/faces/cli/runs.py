"""`windtunnel runs [WORDS...]`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from windtunnel.errors import SpecError
from windtunnel.faces.cli.output import note, print_answer, stdout

if TYPE_CHECKING:
    from windtunnel.faces.report.run_list import Run


def runs(
    *words: str,
    tagged: Annotated[str | None, Parameter(help="Only runs with this tag.")] = None,
    tag: Annotated[
        tuple[str, ...],
        Parameter(
            negative="",
            consume_multiple=False,
            help="Give a run tags in place of those that it has: RUN=a,b; RUN= takes all. Repeatable.",
        ),
    ] = (),
    delete: Annotated[
        tuple[str, ...],
        Parameter(negative="", consume_multiple=False, help="Delete a run folder, with --yes. Repeatable."),
    ] = (),
    yes: Annotated[bool, Parameter(negative="", help="Really delete.")] = False,
    json: Annotated[bool, Parameter(negative="", help="Print the list as JSON.")] = False,
    out: Annotated[Path, Parameter(help="Where run folders are (runs).")] = Path("runs"),
) -> None:
    """List saved runs, newest first; search, tag and delete them.

    Parameters
    ----------
    words
        Runs that have each of these in what the list shows or in their tags.
    """
    from windtunnel.faces.report.run_list import RunList

    listed = RunList(out)
    if yes and not delete:
        raise SpecError("--yes", True, "it goes with --delete RUN")
    if delete and (words or tagged is not None or tag):
        raise SpecError("--delete", delete[0], "delete by name alone: list first, then delete")
    # All names are read before anything is changed.
    given = [_tagging(text, listed.names()) for text in tag]
    doomed = list(dict.fromkeys(_named(run, listed.names(), "--delete") for run in delete))
    if doomed and not yes:
        remedy = f"add --yes to delete {'it' if len(doomed) == 1 else f'these {len(doomed)}'} for good"
        raise SpecError("--delete", ", ".join(doomed), remedy)
    for name in doomed:
        listed.delete(name)
        note(f"deleted {out / name}")
    if doomed and not json:
        return
    for name, text in given:
        listed.tag(name, text)
    found, tags = listed.matching(" ".join(words), tagged or ""), listed.tags()
    if json:
        print_answer("runs", {"runs": [_document(run, tags.get(run.name, ())) for run in found]})
        return
    from windtunnel.faces.report.runs_console import print_runs

    print_runs(found, tags, stdout(), some=bool(words) or tagged is not None, where=str(out))


def _tagging(text: str, names: list[str]) -> tuple[str, str]:
    run, equals, tags = text.partition("=")
    if not equals:
        raise SpecError("--tag", text, "write RUN=a,b; RUN= takes all tags away")
    return _named(run.strip(), names, "--tag"), tags


def _named(text: str, names: list[str], flag: str) -> str:
    """The one run whose name begins with these digits."""
    found = [name for name in names if text and name.startswith(text)]
    if len(found) != 1:
        several = f"fits {len(found)} runs: give more digits" if found else "give the first digits of a listed run"
        raise SpecError(flag, text, several)
    return found[0]


def _document(run: Run, tags: tuple[str, ...]) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(run) | {"tags": list(tags)}
