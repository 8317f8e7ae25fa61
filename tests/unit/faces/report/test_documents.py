"""Every answer shows itself in a notebook, draws its pictures, gives its table and writes its report."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

import windtunnel
from windtunnel.errors import SpecError, UserError
from windtunnel.faces.report.documents import DOCUMENTS, OF_JSON, document_of
from windtunnel.notebook import Shown
from windtunnel.questions.header import Answer

SOURCE = Path(windtunnel.__file__).parent
TRAINED = {"model": "llama-3.2-1b", "cluster": "h100-sxm:16", "plan": {"tp": 2, "global_batch": 32, "seq_len": 1024}}
QUESTIONS = {
    "predict": TRAINED,
    "plan": TRAINED | {"plan": {"tp": 2, "pp": 1, "cp": 1, "micro_batch": 1, "global_batch": 32, "seq_len": 1024}},
    "diagnose": TRAINED | {"measured": "1s"},
    "survive": TRAINED | {"days": 3},
    "fabric": {"cluster": "h100-sxm:64", "bytes": "64MiB..256MiB"},
}


@pytest.mark.parametrize("verb", QUESTIONS)
def test_an_answer_shows_itself(verb: str, tmp_path: Path) -> None:
    answer = windtunnel.ask({"question": verb, **QUESTIONS[verb]})
    assert isinstance(answer, Shown)
    document = document_of(answer)
    assert document.title in answer._repr_html_()
    picture = answer.plot()._repr_html_()  # type: ignore[attr-defined]
    assert picture.startswith("<iframe")
    assert "&lt;!doctype html&gt;" in picture.lower()
    answer.report(tmp_path / "page.html")
    assert document.title in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_first_table_as_a_frame() -> None:
    answer = windtunnel.ask({"question": "fabric", **QUESTIONS["fabric"]})
    if importlib.util.find_spec("pandas") is None or importlib.util.find_spec("pyarrow") is None:
        with pytest.raises(UserError, match="pip install"):
            answer.to_dataframe()  # type: ignore[attr-defined]
        return
    frame = answer.to_dataframe()  # type: ignore[attr-defined]
    assert len(frame) >= 3
    assert (frame["time, s"] > 0).all()


def test_every_answer_has_views() -> None:
    """But for real ranks, which the command line prints, and lists of runs, which need the words they were found by."""
    answers = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and {"Answer", "Shown"} & {ast.unparse(base) for base in node.bases}:
                module = str(path.relative_to(SOURCE).with_suffix("")).replace("/", ".")
                answers.add(f"{module}:{node.name}")
    without = {"questions.header:Answer", "real.emulate.question:Emulated", "faces.report.run_list:Listed"}
    assert answers - without == DOCUMENTS.keys() | OF_JSON.keys()


def test_an_answer_without_views_is_its_json() -> None:
    class Bare(Answer):
        def to_dict(self) -> dict[str, object]:
            return {"name": "<b>"}

    assert Bare()._repr_html_() == "<pre>{\n &quot;name&quot;: &quot;&lt;b&gt;&quot;\n}</pre>"


def test_every_row_names_a_function_and_what_is_none_is_one_error() -> None:
    for place in (*DOCUMENTS.values(), *OF_JSON.values()):
        module, _, name = place.partition(":")
        assert callable(getattr(importlib.import_module(f"windtunnel.faces.report.{module}"), name))
    with pytest.raises(SpecError, match="answer"):
        document_of(object())  # type: ignore[arg-type]
