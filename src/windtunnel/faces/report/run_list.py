"""Run folders as `windtunnel runs` and the page list them: read once, tagged, deleted. The folders are the database.

Tags lie in `tags.json` beside the runs; a summary of each run is kept by the size and time of its `result.json`, so
that a list of thousands is read once.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from threading import Lock

from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.faces.report.prediction.spec_words import gpus, model_name
from windtunnel.faces.report.run_folder import RESULT_FILE, load
from windtunnel.files.bytes import path_of
from windtunnel.files.write import write_atomically
from windtunnel.physics.step.result import Result
from windtunnel.questions.asked.saved import RunsDelete, RunsList, RunsTag
from windtunnel.questions.header import Answer
from windtunnel.views import Document, Field, Headline, Number, table_of
from windtunnel.views.text import text_of

NAME = re.compile(r"[0-9a-f]{12}")
TAGS_FILE = "tags.json"
TAG_LENGTH_MOST, TAGS_MOST = 40, 12
_IN_COLUMNS = ("--tp", "--pp", "--cp", "--ep", "--dp")


@dataclass(frozen=True)
class Run:
    """One line of the list."""

    name: str
    model: str
    where: str
    layout: str
    step_time_s: float
    p5_s: float
    p95_s: float
    mfu: float
    memory_share: float
    status: str
    saved_s: float
    problem: str = ""  # why it cannot be shown
    asked: tuple[str, ...] = ()  # what no column shows, as the command has it: `--recompute full`

    @property
    def words(self) -> str:
        """What a search looks through."""
        return f"{self.name} {self.model} {self.where} {self.layout} {self.status} {' '.join(self.asked)}".lower()


class RunList:
    """The runs in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = path_of(root, "give the folder of runs")
        self._runs_read: dict[str, tuple[tuple[int, int], Run]] = {}
        self._lock = Lock()

    def all(self) -> list[Run]:
        """All runs, newest first."""
        return self.newest(None)[0]

    def newest(self, most: int | None) -> tuple[list[Run], int]:
        """The `most` newest, or all, newest first, and how many there are; others are not read."""
        with self._lock:
            saved = []
            for folder in self.root.iterdir() if self.root.is_dir() else ():
                if NAME.fullmatch(folder.name):
                    with suppress(OSError):  # no run, or deleted meanwhile
                        saved.append((-(folder / RESULT_FILE).stat().st_mtime, folder.name))
            saved.sort()
            names = {name for _, name in saved}
            self._runs_read = {name: entry for name, entry in self._runs_read.items() if name in names}
            runs = []
            for _, name in saved[:most]:
                with suppress(FileNotFoundError):
                    runs.append(self._run(self.root / name))
        return runs, len(saved)

    def names(self) -> list[str]:
        """Names of all runs; no run is read."""
        return sorted(
            path.parent.name for path in self.root.glob(f"*/{RESULT_FILE}") if NAME.fullmatch(path.parent.name)
        )

    def matching(self, search: str, tag: str = "") -> list[Run]:
        """Those that hold every word searched for, in what the list shows or in their tags."""
        tags, words = self.tags(), search.lower().split()
        return [
            run
            for run in self.all()
            if (not tag or tag in tags.get(run.name, ()))
            and all(word in f"{run.words} {' '.join(tags.get(run.name, ())).lower()}" for word in words)
        ]

    def find_run(self, name: str) -> Run:
        """One line of the list. InputFileError where there is none of this name."""
        return self._run(self.result_path(name).parent)

    def _run(self, folder: Path) -> Run:
        status = (folder / RESULT_FILE).stat()
        stamp = (status.st_size, status.st_mtime_ns)
        entry = self._runs_read.get(folder.name)
        if entry is None or entry[0] != stamp:
            entry = (stamp, summary(folder.name, folder, status.st_mtime))
            self._runs_read[folder.name] = entry
        return entry[1]

    def result(self, name: str) -> Result:
        """The whole of one run. InputFileError where there is none of this name."""
        return load(self.result_path(name).parent)

    def delete(self, *names: str) -> None:
        """Remove run folders and their tags."""
        with self._lock:  # two tabs delete the same one
            for name in names:
                shutil.rmtree(self.result_path(name).parent)
                tags = self.tags()
                if tags.pop(name, None) is not None:
                    self._write(tags)

    def result_path(self, name: str) -> Path:
        """Its `result.json`. InputFileError where there is none of this name."""
        path = self.root / name / RESULT_FILE
        if not NAME.fullmatch(name) or not path.is_file():
            raise InputFileError(name[:60], "is no run of this list", "choose one from the list")
        return path

    def tags(self) -> dict[str, tuple[str, ...]]:
        """Tags of each run that has any; none where the file is not ours."""
        try:
            document = json.loads((self.root / TAGS_FILE).read_text())
        except (OSError, ValueError):
            return {}
        tagged = document.items() if isinstance(document, dict) else ()
        return {
            name: tuple(str(tag)[:TAG_LENGTH_MOST] for tag in tags[:TAGS_MOST])
            for name, tags in tagged
            if isinstance(tags, list)
        }

    def tag(self, name: str, text: str) -> tuple[str, ...]:
        """Give a run the tags in `text`, with commas between; returns them."""
        labels = tuple(dict.fromkeys(part.strip()[:TAG_LENGTH_MOST] for part in text.split(",") if part.strip()))
        with self._lock:  # two tabs tag at once
            self.result_path(name)
            tags = self.tags() | {name: labels[:TAGS_MOST]}
            if not labels:
                del tags[name]
            self._write(tags)
        return labels[:TAGS_MOST]

    def _write(self, tags: dict[str, tuple[str, ...]]) -> None:
        write_atomically(self.root / TAGS_FILE, json.dumps(tags, indent=1, sort_keys=True).encode())


@dataclass(frozen=True, slots=True)
class Listed(Answer):
    """Runs, newest first, and the tags of each that has any."""

    runs: tuple[Run, ...]
    tags: Mapping[str, tuple[str, ...]]

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {"runs": [asdict(run) | {"tags": list(self.tags.get(run.name, ()))} for run in self.runs]}


def answer(question: RunsList) -> Listed:
    """Saved runs, all or those that are searched for."""
    listed = RunList(Path(question.runs))
    return Listed(tuple(listed.matching(" ".join(question.words), question.tagged)), listed.tags())


def answer_tag(question: RunsTag) -> Listed:
    """Tag runs, and list all. All names are read before anything is changed. Raises SpecError."""
    listed = RunList(Path(question.runs))
    names, changes = listed.names(), []
    for text in question.tags:
        run, equals, tags = text.partition("=")
        if not equals:
            raise SpecError("tags", text, "write RUN=a,b; RUN= takes all tags away")
        changes.append((_matching_run("tags", run.strip(), names), tags))
    for name, tags in changes:
        listed.tag(name, tags)
    return answer(RunsList(runs=question.runs))


def answer_delete(question: RunsDelete) -> tuple[str, ...]:
    """Delete runs; their names. Raises SpecError on a name that is no run's, and without `yes`: nothing is deleted."""
    listed = RunList(Path(question.runs))
    names = listed.names()
    doomed = tuple(dict.fromkeys(_matching_run("names", text, names) for text in question.names))
    if doomed and not question.yes:
        remedy = f"add --yes to delete {'it' if len(doomed) == 1 else f'these {len(doomed)}'} for good"
        raise SpecError("names", ", ".join(doomed), remedy)
    listed.delete(*doomed)
    return doomed


def _matching_run(field: str, text: str, names: Sequence[str]) -> str:
    """The one run whose name begins with these digits."""
    matches = [name for name in names if text and name.startswith(text)]
    if len(matches) != 1:
        several = f"fits {len(matches)} runs: give more digits" if matches else "give the first digits of a listed run"
        raise SpecError(field, text, several)
    return matches[0]


def told_apart(runs: Sequence[Run]) -> dict[str, str]:
    """By name of a run: what was asked of it and not of all that look like it; nothing where none does."""
    alike: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        alike.setdefault((run.model, run.where, run.layout), []).append(run)
    texts = {}
    for group in alike.values():
        common = set(group[0].asked).intersection(*(run.asked for run in group))
        for run in group:
            own = (text.removeprefix("--").removeprefix("set ") for text in run.asked if text not in common)
            texts[run.name] = " · ".join(own)
    return texts


def _options(command: str) -> tuple[str, ...]:
    """The options of a command that gives a run again, each with its value, but for those that columns show."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ()
    texts: list[str] = []
    for word in words:
        if word.startswith("--"):
            texts.append(word.replace("=", " ", 1))
        elif texts:
            texts[-1] += f" {word}"
    return tuple(text for text in texts if text.split(" ")[0] not in _IN_COLUMNS)


def summary(name: str, folder: Path, saved_s: float) -> Run:
    """One line about a run folder; what cannot be read says why."""
    try:
        result = load(folder)
    except UserError as error:
        return Run(name, "", "", "", 0.0, 0.0, 0.0, 0.0, 0.0, "unreadable", saved_s, str(error))
    plan = result.spec.get("plan", {})
    degrees = " · ".join(f"{key} {plan[key]}" for key in ("tp", "pp", "cp", "ep", "dp") if plan.get(key, 1) != 1)
    most = result.peak_memory.device_bytes if result.memory else 0
    return Run(
        name=name,
        model=model_name(result),
        where=gpus(result),
        layout=degrees or "one GPU each",
        step_time_s=result.step_time_s,
        p5_s=result.step_time_p5_ns / 1e9,
        p95_s=result.step_time_p95_ns / 1e9,
        mfu=result.mfu,
        memory_share=most / max(result.memory_capacity_bytes, 1),
        status=result.status,
        saved_s=saved_s,
        asked=_options(result.reproduce),
    )


def runs_document(
    runs: Sequence[Run], tags: Mapping[str, Sequence[str]], where: str, *, some: bool, page: bool = False
) -> Document:
    """One line a run; `some`: a part of what there is was asked for; `page`: to be looked at, chosen and compared."""
    if not runs:
        return Document("runs", f"Runs in {where}", [Headline(f"no run in {where}{' matches' if some else ''}")])
    apart, tagged = told_apart(runs), any(tags.get(run.name) for run in runs)

    def step(run: Run) -> Number | None:
        return None if run.problem else Number(run.step_time_s, "s", *((run.p5_s, run.p95_s) if page else ()))

    def memory(run: Run) -> str:
        share = "" if run.problem else text_of(run.memory_share, "share")
        return f"{share} does not fit" if run.status == "infeasible" else share

    fields: list[Field[Run]] = [
        *(
            ("run", "text", "name"),
            ("model", "text", lambda run: run.model or run.status),
            ("cluster", "text", "where"),
        ),
        ("layout", "text", lambda run: run.problem or " · ".join(filter(None, (run.layout, apart[run.name])))),
        *(
            ("step", "s", step),
            ("MFU", "share", lambda run: None if run.problem else run.mfu),
            ("memory", "number", memory),
        ),
        ("saved", "text", lambda run: datetime.fromtimestamp(run.saved_s).strftime("%Y-%m-%d %H:%M")),
        ("tags", "text", lambda run: ", ".join(tags.get(run.name, ())) if tagged else None),
    ]
    table, names = table_of("", runs, fields), [run.name for run in runs]
    table = replace(table, links=[f"/runs/{name}" for name in names], choices=names) if page else table
    return Document("runs", f"Runs in {where}", [table])
