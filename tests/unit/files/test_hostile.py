"""Files that a user names: what would wait for ever, never end or not fit is an error, in bounded memory."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from windtunnel.errors import InputFileError
from windtunnel.files.bytes import gunzip, read_bytes, read_text

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


def test_files_are_read_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("\ufeffa\r\nbé".encode())
    assert read_bytes(tmp_path / "text") == "\ufeffa\r\nbé".encode()
    assert read_text(tmp_path / "text") == "a\r\nbé"
    (tmp_path / "packed").write_bytes(gzip.compress("é".encode()))
    assert read_text(tmp_path / "packed") == "é"
    assert gunzip(gzip.compress(b"one") + gzip.compress(b"two"), "x") == b"onetwo"


def test_what_never_ends_or_is_too_large_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputFileError, match="pipe or a device"):
            read_bytes(path)
    (tmp_path / "long").write_bytes(b"x" * 11)
    assert len(read_bytes(tmp_path / "long", most=11)) == 11
    with pytest.raises(InputFileError, match="larger than"):
        read_bytes(tmp_path / "long", most=10)
    for path in (tmp_path, tmp_path / "none", tmp_path / "a\0b", Path("/proc/self/mem")):
        with pytest.raises(InputFileError, match="cannot be read"):
            read_bytes(path)
    (tmp_path / "latin").write_bytes(b"a\xff")
    with pytest.raises(InputFileError, match=r"not text in UTF-8 \(byte 1\)"):
        read_text(tmp_path / "latin")


@pytest.mark.parametrize(
    ("packed", "problem"),
    [
        (gzip.compress(bytes(10_000), mtime=0), "unpacks to more"),
        (gzip.compress(b"abc", mtime=0)[:-3], "cut off"),
        (b"nonsense", "no gzip"),
    ],
)
def test_what_unpacks_to_too_much_or_is_damaged_is_refused(packed: bytes, problem: str) -> None:
    with pytest.raises(InputFileError, match=problem):
        gunzip(packed, "x", most=9_999)


ASK_ALL = """
import json, resource, sys
from contextlib import redirect_stderr
from io import StringIO
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from windtunnel.faces.cli import main
for words in json.load(sys.stdin):
    said = StringIO()
    with redirect_stderr(said):
        status = main(words)
    print(json.dumps([status, said.getvalue()]), flush=True)
"""


def answers_in_bounded_memory(questions: list[list[str]], folder: Path) -> list[tuple[int, str]]:
    """Status and message of each, all in one process."""
    done = subprocess.run(
        [sys.executable, "-c", ASK_ALL],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=240,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(questions), (answers, done.stderr[-500:])
    return answers


def hostile(what: str, path: Path) -> None:
    if what == "pipe":
        os.mkfifo(path)
    elif what in ("/dev/zero", "/proc/self/mem"):
        path.symlink_to(what)
    elif what == "sparse":
        with path.open("wb") as file:
            file.truncate(20 << 30)
    else:
        path.write_text(BOMB)


HOSTILE = ["pipe", "/dev/zero", "/proc/self/mem", "sparse", "bomb"]


@pytest.mark.parametrize("what", HOSTILE)
def test_every_input_of_a_prediction_is_read_so(what: str, tmp_path: Path) -> None:
    """All of them in one process of bounded memory."""
    questions = []
    for place in ("model", "--cluster", "--plan", "--slow", "--router-load", "--lengths"):
        (tmp_path / place).mkdir()
        name = {"model": "in.json", "--router-load": "in.csv", "--lengths": "in.csv"}.get(place, "in.yaml")
        path = tmp_path / place / name
        hostile(what, path)
        arguments = {"model": "mixtral-8x7b", "--cluster": "h100-sxm:8"} | {place: str(path)}
        model = arguments.pop("model")
        words = [word for pair in arguments.items() for word in pair]
        questions.append(["predict", model, *words, "--global-batch", "8", "--seq", "128", "--no-save"])
    for (status, said), words in zip(answers_in_bounded_memory(questions, tmp_path), questions, strict=True):
        assert status == 2, (words, said)
        assert said.startswith("windtunnel: error: "), words
        assert len(said.splitlines()) == 1


@pytest.mark.parametrize("what", HOSTILE)
def test_traces_jobs_and_studies_are_read_so(what: str, tmp_path: Path) -> None:
    endings = ("yaml", "json", "csv", "parquet", "txt")
    for ending in (*endings, "et", "json.gz"):
        hostile(what, tmp_path / f"in.{ending}")
    questions = [["fleet", f"in.{ending}", "--cluster", "v100:8"] for ending in endings]
    questions += [["explain", f"in.{ending}"] for ending in ("json", "parquet", "et", "json.gz")]
    questions += [["sweep", "in.yaml", "--out", "out.parquet"]]
    for (status, said), words in zip(answers_in_bounded_memory(questions, tmp_path), questions, strict=True):
        assert status == 2, (words, said)
        assert said.startswith("windtunnel: error: "), words
        assert len(said.splitlines()) == 1
