"""`windtunnel capture [torchrun's options] train.py ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windtunnel.faces.cli.flags import Command, Outputs
from windtunnel.faces.cli.output import counting, give, note, print_question, texts, wrote
from windtunnel.questions.asked.capture import Capture

WOULD_NOT_RUN = 4  # exit status


def capture(
    question: Capture,
    outputs: Outputs,
    *,
    jobs: Annotated[int | None, Parameter(help="Ranks run at a time (one a core).")] = None,
    out: Annotated[Path, Parameter(help="Folder to write (captured).")] = Path("captured"),
) -> int:
    """Capture, and print; the exit status is 4 where something was found that would hang or crash the real job."""
    from windtunnel.real.capture.checks import FindingsError
    from windtunnel.real.capture.processes.rank_server import ScriptError
    from windtunnel.real.capture.question import answer

    try:
        with counting("running ranks") as bar:
            document = answer(question, jobs=jobs, out=out, report=lambda done, total, text: bar(done, total))
    except FindingsError as error:
        if outputs.json:
            print_question(question, error.document, warnings=error.document["notes"])
        if error.details:
            note(error.details.rstrip())
        note(f"windtunnel: error: {error}")
        for finding in error.document["findings"]:
            if finding["text"] not in str(error):
                note(f"found, too: {finding['effect']}: {finding['text']}")
        return WOULD_NOT_RUN
    except ScriptError as error:
        if error.details:
            note(error.details.rstrip())
        raise
    from windtunnel.faces.report.captured import captured_document

    shown = captured_document(document, str(out), question.cluster)
    give(question, document, outputs, shown, warnings=texts(document["notes"]))
    if not outputs.json:
        wrote(out)
    return 0


COMMANDS = (Command("capture", capture),)
