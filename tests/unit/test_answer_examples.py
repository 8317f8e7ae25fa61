"""No answer moves in silence: figures of questions over everything that a plan or a deployment may say, as accepted.

    PYTHONPATH=src:tests/laws python tests/unit/test_answer_examples.py [QUESTIONS.txt]

accepts those of today, and questions that a file adds, one a line; read the difference before you commit it.

The file holds a question a line, as a command, with the numbers of its JSON. What a change of prices is meant to move
is written again; what moves beside it is a fault of the change. Why a figure is right is told by other tests, not here.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from calibrated_cpu import calibrated_cpu

from windtunnel.faces.cli.app import main

ACCEPTED = Path(__file__).resolve().parent / "answers.jsonl"
QUESTIONS: dict[str, dict[str, float]] = {
    row["ask"]: row["figures"] for row in map(json.loads, ACCEPTED.read_text().splitlines())
}
# Of a document: what is asked, what is advised (an answer each), and what depends on the machine.
OTHER = ("question", "spec", "advice", "advice_tried", "limits", "excerpt", "defaults", "n_ops", "seconds", "stages")
PREDICTED = (
    *("step_time_ns", "step_time_p5_ns", "step_time_p95_ns", "mfu", "hfu", "gpu_watts", "peak_memory_bytes"),
    *("memory_p95_bytes", "breakdown_ns", "memory", "traffic_bytes", "provenance", "technique", "n_classes"),
)
LONGEST = 2  # of a list: stages, replicas
ADVISED = {*list(QUESTIONS)[::12]}  # with advice, which is no figure here but must be found for whatever is asked


def timed_cpu() -> str:
    """A cluster file of eight CPUs that somebody timed, ops and collectives."""
    document = calibrated_cpu(gpus=8, new_shape_forward_fp32_s=1e-4)
    document["calibration"]["collectives"] = {
        kind: {
            f"gloo {ranks}": [
                [2.0**e, *(share * times * (1e-4 + 2.0**e * ranks / 3.2e10) for share in (1.0, 0.95, 1.05))]
                for e in range(10, 28, 3)
            ]
            for ranks in (2, 8)
        }
        for kind, times in (("all_reduce", 2.0), ("all_gather", 1.0), ("reduce_scatter", 1.0), ("send_recv", 0.5))
    }
    return json.dumps(document)


FILES = {  # that questions name
    "lengths.csv": "length,count\n200,700\n900,250\n3000,50\n",
    "experts.csv": "layer,expert,tokens\n" + "".join(f"{i % 3},{i // 3},{100 + i * i % 97}\n" for i in range(384)),
    "minutes.csv": "minute,added,removed\n0,24,0\n"
    + "".join(f"{i},{(i % 11 == 7) * (i % 3)},{(i % 13 == 5) * (i % 4)}\n" for i in range(1, 180)),
    "popularity.csv": "expert,tokens\n" + "".join(f"{i},{100 + i * i % 97}\n" for i in range(128)),
    "failures.csv": "time_h,node,cause\n" + "".join(f"{7.3 * i % 700:.1f},{37 * i % 128},gpu\n" for i in range(90)),
    "cpu.yaml": timed_cpu(),
}


def figures(words: str) -> dict[str, float]:
    """Every number of the answer that is a figure, by its path."""
    verb, *rest = shlex.split(words)
    more = ["--no-save", *(["--no-advice"] if words not in ADVISED else [])] if verb == "predict" else []
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        status = main([verb, *rest, "--json", *more])
    document = json.loads(out.getvalue())
    kept = {name: document[name] for name in PREDICTED if name in document} if verb == "predict" else document
    return {"status": status, **dict(_numbers(kept, ""))}


def _numbers(value: object, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value:
            yield path, float(f"{value:.7g}")
    elif isinstance(value, dict):
        for name, part in value.items():
            if name not in OTHER:
                yield from _numbers(part, f"{path}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for number, part in enumerate(value[:LONGEST]):
            yield from _numbers(part, f"{path}.{number}")


def write_files(folder: Path) -> None:
    """What questions name, into a folder; and there they are asked."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    os.chdir(folder)


@pytest.mark.parametrize("words", QUESTIONS)
def test_figures_are_those_that_were_accepted(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    now, accepted = figures(words), QUESTIONS[words]
    moved = {
        name: (accepted.get(name), now.get(name))
        for name in sorted({*now, *accepted})
        if not math.isclose(now.get(name, math.nan), accepted.get(name, math.nan), rel_tol=1e-6)
    }
    assert not moved, f"{words}\n(accepted, now): {moved}"


if __name__ == "__main__":
    asked = [*QUESTIONS, *(line for path in sys.argv[1:] for line in Path(path).read_text().splitlines())]
    write_files(Path(tempfile.mkdtemp()))
    rows = [json.dumps({"ask": words, "figures": figures(words)}) + "\n" for words in dict.fromkeys(asked)]
    ACCEPTED.write_text("".join(rows))
