"""Every pair of the flags that `serve` had is accepted or refused by the verbs of today as it was then."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from cyclopts import CycloptsError
from serve_pairs import OUTPUTS, questions, recorded, write_files

from windtunnel.errors import UserError
from windtunnel.faces.cli.serve import serve_app
from windtunnel.questions import run
from windtunnel.questions.former import renewed
from windtunnel.questions.old import question_of_command
from windtunnel.questions.serve_listen import ServeListen
from windtunnel.studies.serving import study

WORK = (  # where a study begins what takes time
    "windtunnel.studies.serving.study._runner",
    "windtunnel.studies.serving.study.priced",
    "windtunnel.studies.serving.study.pools_in_words",
    "windtunnel.studies.serving.spot.study.serve_on_spot",
    "windtunnel.studies.serving.placement.answer.place_phases",
    "windtunnel.real.serving.compare.answer",
)


class Accepted(Exception):
    """The question came to the work of its study."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)

    def accepted(*_: Any, **__: Any) -> None:
        raise Accepted

    for name in WORK:
        monkeypatch.setattr(name, accepted)
    return tmp_path


def test_all_pairs_are_judged_as_they_were(folder: Path) -> None:
    before, app = recorded(), serve_app()
    assert len(before) == 1275
    differ = []
    for first, second, words in questions():
        asked = renewed(["serve", *words])
        try:
            if {first, second} & OUTPUTS:  # no part of a question
                app(asked[1:], exit_on_error=False, print_error=False, result_action="return_value")
            else:
                question = question_of_command(shlex.join(["windtunnel", *asked]))
                study.listen(question, print) if isinstance(question, ServeListen) else run(question)
            error = None
        except Accepted:
            error = None
        except (UserError, CycloptsError) as refused:
            error = str(refused)
        if (before[first, second] == ".") != (error is None):
            differ.append((first, second, before[first, second], error))
    assert differ == []
