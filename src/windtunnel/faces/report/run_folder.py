"""Run folders: one Result per folder, named by the hash of its content, so equal results share a folder.

runs/3f9c02d1ab47/
  result.json      the Result; everything else can be made from it again
  report.html      on request
  trace.json.gz    on request
  question.yaml    what was asked: `windtunnel ask` asks it again
  spec.yaml        the same, resolved: for people
"""

from __future__ import annotations

import re
from dataclasses import replace
from os import PathLike
from pathlib import Path

from windtunnel.errors import InputFileError
from windtunnel.faces.report.prediction.document import DocumentError, from_bytes, to_bytes, to_document
from windtunnel.files.bytes import read_bytes
from windtunnel.files.document import to_yaml
from windtunnel.files.write import write_atomically
from windtunnel.physics.step.result import Result
from windtunnel.questions.typed import check

RESULT_FILE, REPORT_FILE, TRACE_FILE, SPEC_FILE = "result.json", "report.html", "trace.json.gz", "spec.yaml"
QUESTION_FILE = "question.yaml"
_HASH_PREFIX = re.compile(r"[0-9a-f]{2,12}")
# A result is a few MB at most; a file of another kind is refused before it fills the memory.
_LARGEST_BYTES = 1 << 30


def save(result: Result, root: Path | str = Path("runs"), *, html: bool = False, trace: bool = False) -> Path:
    """Write the run folder of `result` under `root` and return its path.

    Saving the same result again writes the same bytes. Raises InputFileError when `root` cannot be written.
    """
    check(locals(), result=Result, root=str | PathLike)
    result = replace(result, advice=(), advice_tried=0)  # kept is the answer, however it was asked for
    folder = Path(root) / result.content_hash
    if html:
        from windtunnel.faces.report.documents import write_report

        write_report(result, folder / REPORT_FILE)
    if trace:
        from windtunnel.faces.report.prediction.trace import write_trace

        write_trace(result, folder / TRACE_FILE)
    write_atomically(folder / SPEC_FILE, _spec_yaml(result))
    document = to_document(result)
    if result.question:
        write_atomically(folder / QUESTION_FILE, to_yaml(dict(result.question)).encode())
        document["question"] = dict(result.question)
    # Last: a folder that has its result.json is complete.
    write_atomically(folder / RESULT_FILE, to_bytes(document))
    return folder


def load(path: Path | str, root: Path | str = Path("runs")) -> Result:
    """The Result at `path`: a run folder, its result.json, or the first digits of a hash under `root`.

    Raises InputFileError when there is no such run, or its file is cut off, edited, foreign or of a newer schema.
    """
    check(locals(), path=str | PathLike, root=str | PathLike)
    file = _find(str(path), Path(root))
    data = read_bytes(file, "give a run folder, its result.json or its hash", _LARGEST_BYTES)
    try:
        return from_bytes(data)
    except DocumentError as error:
        raise InputFileError(file, error.problem, error.remedy) from None


def _find(text: str, root: Path) -> Path:
    path = Path(text)
    try:
        if path.is_dir():
            if (path / RESULT_FILE).is_file():
                return path / RESULT_FILE
            raise InputFileError(path, f"holds no {RESULT_FILE}", "give a folder that `windtunnel predict` wrote")
        if path.exists():
            return path
        if _HASH_PREFIX.fullmatch(text):
            paths = sorted(folder for folder in root.glob(f"{text}*") if (folder / RESULT_FILE).is_file())
            if len(paths) > 1:
                names = ", ".join(folder.name for folder in paths[:6])
                raise InputFileError(text, f"fits {len(paths)} runs in {root}", f"give more digits of {names}")
            if paths:
                return paths[0] / RESULT_FILE
        hashes = sorted(folder.parent.name for folder in root.glob(f"*/{RESULT_FILE}"))
    except (OSError, ValueError) as error:  # a name too long for the system, or with a null byte
        raise InputFileError(text, f"is no path ({error})", "give a run folder, its result.json or its hash") from None
    remedy = (
        f"runs in {root}: {', '.join(hashes[:6])}{', ...' if len(hashes) > 6 else ''}" if hashes else "save one first"
    )
    raise InputFileError(text, "there is no such run", remedy)


def _spec_yaml(result: Result) -> bytes:
    import json

    # Through JSON: what the folder says is then exactly what result.json says, tuples and all.
    spec = json.loads(json.dumps(result.spec))
    head = f"# {' '.join(result.reproduce.split())}\n" if result.reproduce.isprintable() else ""
    return (head + to_yaml(spec, sort_keys=True)).encode()
