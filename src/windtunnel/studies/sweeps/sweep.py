"""`sweep`: run a study's points, journal each row, and write the table when all are there.

A sweep that is killed has a journal beside its table; asked again with the same study, it runs what is missing, each
point once, and the table is the same, byte for byte, as that of a sweep that nobody killed. A study whose table is
there already is answered from it: nothing runs.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.errors import InputFileError, SpecError, UnknownNameError, UserError
from windtunnel.notebook import Shown
from windtunnel.questions import QUESTIONS
from windtunnel.questions.asked.sweep import Sweep
from windtunnel.questions.typed import check
from windtunnel.studies.sweeps.executors import rows_of
from windtunnel.studies.sweeps.journal import Journal, read_journal
from windtunnel.studies.sweeps.points import NO_INPUTS, Drawn, Point, Study, read_study
from windtunnel.studies.sweeps.ray_cluster import wait_for_ends
from windtunnel.studies.sweeps.run_points import QUESTION, Row
from windtunnel.studies.sweeps.table import read_rows, write_table

if TYPE_CHECKING:
    import optuna

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class SweepOutcome(Shown):
    """Where the table is, how many points it has by status, and how many of them ran now."""

    path: Path
    points: int
    ran: int
    by_status: Mapping[str, int]
    best: Mapping[str, object] | None = None  # inputs of the best trial, where an optimiser asked
    reasons: Mapping[str, str] = field(default_factory=dict)  # of the first point of each status that has one

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        return {**asdict(self), "path": str(self.path)}


def answer(question: Sweep, **where: Any) -> SweepOutcome:
    """Run the study of a question; `where`: keywords of `sweep` but for what runs. Raises UserError."""
    return sweep(question.study, **where)


def sweep(
    study: str | Path | Mapping[str, object],
    *,
    out: str | Path = "sweep.parquet",
    jobs: int | None = None,
    executor: str | Executor = "processes",
    function: str | None = None,
    progress: Progress | None = None,
) -> SweepOutcome:
    """Run a study (docs/planning.md) and write one Parquet file: columns key, status, reason, inputs, outputs.

    `jobs`: processes (one per core if not given); `executor`: processes, serial, ray, ray:ADDRESS, or any
    `concurrent.futures.Executor`; `function`: `module:name` that is called in place of the study's verb. Raises
    UserError on a study that cannot be; a point that fails is a row. A table of just this study at `out` is the answer:
    remove it to run again.
    """
    check(
        locals(),
        study=str | PathLike | Mapping,
        out=str | PathLike,
        jobs=int | None,
        executor=str | Executor,
        function=str | None,
    )
    if jobs is not None and jobs < 1:
        raise SpecError("--jobs", jobs, "give 1 or more")
    read = read_study(study, _version())
    path = Path(out)
    if path.is_dir():  # said before anything runs
        raise InputFileError(path, "is a folder", "give the path of a file that can be written")
    if path.suffix in (".csv", ".tsv", ".json", ".jsonl", ".xlsx"):
        raise InputFileError(path, "is to hold a table in Parquet", "give a name that ends in .parquet")
    journal = path.with_name(path.name + ".journal")
    called = function or f"{QUESTION}:{read.verb}"
    if function is None:
        _require_question(read)
    else:
        _require_function(function)
    finished = {} if function is not None else read_rows(path)  # keys do not tell one function from another
    if finished and not journal.exists():
        answer = _answered(read, finished, path)
        if answer is not None:
            return answer
    workers = jobs or os.cpu_count() or 1
    try:
        with Journal(journal) as log:
            rows = read_journal(journal)
            points, ran = _run(read, rows, log, called, executor, workers, progress)
            best = None
            if read.optuna is not None:
                points, more, best = _trials(read, points, rows, log, called, progress)
                ran += more
            write_table(points, {point.key: rows[point.key] for point in points}, path)
    finally:
        wait_for_ends()
    journal.unlink(missing_ok=True)
    return SweepOutcome(path, len(points), ran, _counts(points, rows), best, _reasons(points, rows))


def _counts(points: list[Point], rows: Mapping[str, Mapping[str, object]]) -> dict[str, int]:
    return dict(sorted(Counter(str(rows[point.key]["status"]) for point in points).items()))


def _reasons(points: list[Point], rows: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    reasons = [
        (str(row["status"]), str(row["reason"])) for row in (rows[point.key] for point in points) if row["reason"]
    ]
    return dict(reversed(reasons))


def _answered(study: Study, finished: Mapping[str, Mapping[str, object]], path: Path) -> SweepOutcome | None:
    """The outcome of a study whose table is there; None where that is the table of another study."""
    points, best = list(study.points), None
    if any(point.key not in finished for point in points):
        return None
    if study.optuna is not None:
        rows = {key: {**row, "outputs": _outputs(row)} for key, row in finished.items()}
        try:
            points, _, best = _trials(study, points, rows, None, "", None)
        except _NotThereError:
            return None
    if [point.key for point in points] != list(finished):
        return None
    return SweepOutcome(path, len(points), 0, _counts(points, finished), best, _reasons(points, finished))


def _outputs(row: Mapping[str, object]) -> dict[str, object]:
    """Columns of a table by the names that outputs had."""
    return {**row, **{name[4:]: value for name, value in row.items() if name.startswith("out.")}}


class _NotThereError(Exception):
    """A trial asks for a point that a finished table does not have."""


def _version() -> str:
    """Of the installed package: another version's rows are other rows."""
    try:
        return version("windtunnel")
    except PackageNotFoundError:  # run from a source tree that nobody installed
        return "not installed"


def _require_question(study: Study) -> None:
    """A study is data: its verb only answers, and no input of it says what runs or where it is written."""
    pure = {verb for verb, question in QUESTIONS.items() if question.pure}
    if study.verb in ("predict_with", "predict_captured"):
        raise SpecError("verb of a study", study.verb, "say predict: technique is a list, model a captured folder")
    if study.verb not in pure:
        raise UnknownNameError("verb of a study", study.verb, pure)
    over = (study.optuna or {}).get("over") or {}
    for inputs in (over, study.fixed, *(point.inputs for point in study.points)):
        for name, value in inputs.items():
            if name.partition(".")[0] in NO_INPUTS:
                raise SpecError(name, value, "leave it out: a study says what is asked, `sweep` itself how it runs")


def _require_function(function: str) -> None:
    """`module:name` of something that can be called, as workers find it."""
    module, _, name = function.partition(":")
    try:
        target = getattr(import_module(module), name, None) if module and name else None
    except ImportError as error:
        raise SpecError("--function", function, f"cannot be imported ({error}): give module:name") from None
    if not callable(target):
        raise SpecError("--function", function, "is no function of a module: give module:name")


def _run(
    study: Study,
    rows: dict[str, dict[str, object]],
    log: Journal,
    called: str,
    executor: str | Executor,
    workers: int,
    progress: Progress | None,
) -> tuple[list[Point], int]:
    points = list(study.points)
    missing = [(place, point.inputs) for place, point in enumerate(points) if point.key not in rows]
    done = len(points) - len(missing)
    ran = 0
    if missing:
        for place, row in rows_of(executor, called, missing, workers):
            key = points[place].key
            if key in rows:
                continue
            rows[key] = {"key": key, **row}
            log.add({**rows[key], "inputs": dict(points[place].inputs)})  # for who watches
            ran += 1
            if progress is not None:
                progress(done + ran, len(points))
    return points, ran


def _trials(
    study: Study,
    points: list[Point],
    rows: dict[str, Row],
    log: Journal | None,
    called: str,
    progress: Progress | None,
) -> tuple[list[Point], int, Mapping[str, object] | None]:
    """Trials that Optuna asks for one by one: its sampler is seeded, so a resumed sweep asks for the same ones.

    Without `log` nothing runs: raises _NotThereError for a point that is not among the rows.
    """
    from windtunnel.studies.sweeps.run_points import run_points

    try:
        import optuna
    except ImportError:
        raise UserError("Optuna is not installed: pip install optuna, or use grid, list or random") from None
    assert study.optuna is not None
    settings = study.optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=settings.get("seed", 0))
    search = optuna.create_study(direction="minimize", sampler=sampler)
    target, count, ran = str(settings.get("minimise", "step_time_s")), settings.get("trials", 20), 0
    keys = {point.key for point in points}
    best: tuple[float, Mapping[str, object]] | None = None
    for number in range(count):
        trial = search.ask()
        point = study.point({name: _suggested(trial, name, over) for name, over in settings.get("over", {}).items()})
        if point.key not in rows:
            if log is None:
                raise _NotThereError
            rows[point.key] = {"key": point.key, **run_points(called, [point.inputs])[0]}
            log.add(rows[point.key])
            ran += 1
        if point.key not in keys:
            keys.add(point.key)
            points.append(point)
        value = rows[point.key]["outputs"].get(target)
        if rows[point.key]["status"] == "ok" and value is not None:
            search.tell(trial, float(value))
            if best is None or float(value) < best[0]:
                best = (float(value), point.inputs)
        else:
            search.tell(trial, state=optuna.trial.TrialState.FAIL)
        if progress is not None:
            progress(number + 1, count)
    return points, ran, None if best is None else best[1]


def _suggested(trial: optuna.Trial, name: str, over: Drawn) -> object:
    if isinstance(over, list):
        return trial.suggest_categorical(name, over)
    low, high = over["low"], over["high"]
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(name, low, high, log=bool(over.get("log", False)))
    return trial.suggest_float(name, float(low), float(high), log=bool(over.get("log", False)))
