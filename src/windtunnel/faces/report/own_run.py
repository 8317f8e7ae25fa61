"""What a user's own run showed, as views: the verdict, where the gap lies, class by class, and the diff to apply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from windtunnel.faces.report.prediction.spec_words import title
from windtunnel.faces.report.prediction.views import CHANGE, breakdown, categories_of, change_of, time_parts
from windtunnel.questions.header import Verdict
from windtunnel.studies.diagnose import Diagnosis
from windtunnel.studies.measured_run.against import ClassTime
from windtunnel.studies.planning.advice.proposals import Proposal
from windtunnel.views import (
    Bar,
    Bars,
    Changes,
    Column,
    Document,
    Field,
    Figure,
    Figures,
    Files,
    Headline,
    Notes,
    Number,
    Part,
    Table,
    Tone,
    View,
    table_of,
)
from windtunnel.views.text import plain

PATCH = "As a patch of your file (patch -p1)"
TONES: dict[Verdict, Tone] = {"as expected": "good", "faster": "calm", "slower": "warn"}
LINES_SHOWN = 5


def diagnose_document(answer: Diagnosis) -> Document:
    """Everything that there is to see of a diagnosis."""
    read = f" · log of {answer.log_format}" if answer.log_format else ""
    return Document(
        "diagnosis",
        title(answer.result),
        list(_views(answer)),
        list(_details(answer)),
        f"measured against predicted{read}",
        answer.result.content_hash,
    )


def _views(answer: Diagnosis) -> Iterator[View]:
    predicted = Number(answer.predicted_step_s, "s", answer.predicted_p5_s, answer.predicted_p95_s)
    yield Headline(answer.sentence, TONES[answer.verdict] if answer.result.infeasible is None else "warn")
    figures = [
        Figure("measured", Number(answer.measured_step_s, "s"), _steady_words(answer)),
        Figure("predicted", predicted, "nothing wrong with the machine"),
        Figure("MFU", Number(answer.measured_mfu, "share"), "as measured"),
        Figure("MFU predicted", Number(answer.predicted_mfu, "share")),
    ]
    yield Figures(figures)
    yield _gap(answer)
    if answer.causes:
        rows = [(cause.cause, Number(cause.seconds, "s"), plain(cause.evidence), cause.mend) for cause in answer.causes]
        columns = (Column("cause"), Column("a step", "s"), Column("evidence"), Column("what to do first"))
        left = Number(answer.not_explained_s, "s")
        yield Table("Where it is lost", columns, [*rows, ("not explained", left, "", "")], most=len(rows) + 1)
    if answer.classes:
        yield classes_table(answer.classes)
    else:
        yield from breakdown(answer.result)
    yield from advice_views(answer.advice, fits=answer.result.infeasible is None)
    if answer.not_understood:
        more = len(answer.not_understood) - LINES_SHOWN
        lines = [plain(line) for line in answer.not_understood[:LINES_SHOWN]]
        yield Notes(
            "Lines that look like times and were not understood", [*lines, *([f"and {more:,} more"] * (more > 0))]
        )
    yield Notes("To mind", [plain(warning) for warning in answer.warnings], "warn")


def _gap(answer: Diagnosis) -> Bars:
    """The predicted step in its parts above the measured one: the prediction, what each cause adds, and the rest."""
    parts = time_parts(answer.result.breakdown_ns, categories_of(answer.result))
    causes = (cause for cause in answer.causes if cause.seconds > 0)
    lost = [Part(cause.cause, cause.seconds, f"line-{at % 5 + 1}") for at, cause in enumerate(causes)]
    base = max(answer.measured_step_s - sum(part.value for part in lost), 0.0)
    measured = [Part("without a cause that was seen", base, "line-7"), *lost]
    return Bars("Predicted and measured", "s", [Bar("predicted", parts), Bar("measured", measured)])


def _details(answer: Diagnosis) -> Iterator[View]:
    if answer.advice and not answer.advice[0].diff:
        yield Notes(
            "No diff", ["give the launch file in place of the model, or --launch FILE, for advice as a diff of it"]
        )


def _steady_words(answer: Diagnosis) -> str:
    steady = answer.steady
    if steady is None:
        return ""
    aside = f", {steady.set_aside} set aside" if steady.set_aside else ""
    return f"median of {steady.lines} lines, {steady.warm_up} of warm-up left out{aside}"


def classes_table(classes: Sequence[ClassTime]) -> Table:
    """Class of op by class of op; both columns sum to their step."""
    step = ClassTime("step", *(sum(getattr(each, name) for each in classes) for name in ("predicted_s", "measured_s")))
    fields: list[Field[ClassTime]] = [
        *(("class of op", "text", "name"), ("predicted", "s", "predicted_s"), ("measured", "s", "measured_s")),
        ("difference", "s", lambda class_time: Number(class_time.difference_s, "s")),
        *(("calls", "count", lambda class_time: class_time.calls or None), ("longest op", "text", "longest")),
    ]
    return table_of("Class of op by class of op", [*classes, step], fields, "mean over the ranks")


def advice_views(advice: Sequence[Proposal], *, fits: bool = True) -> Iterator[View]:
    """What to change, in words of the command line and as diffs of the user's file."""
    if not advice:
        return
    changes = [change_of(proposal, proposal.note) for proposal in advice]
    heading = "What would make the prediction shorter" if fits else "What would make it fit in memory"
    yield Changes(heading, CHANGE, changes, "each predicted; fewest changes first")
    diffs = [(proposal.flags, proposal.diff) for proposal in advice if proposal.diff]
    if diffs:
        shown = diffs if len(diffs) == 1 else [diffs[0], diffs[-1]]
        which = ": one or the other" if len(shown) > 1 else ""
        yield Files(f"{PATCH}{which}", shown)
