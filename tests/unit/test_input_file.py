"""Files that a user names: what would wait for ever, never end or not fit is an error, in bounded memory."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from windtunnel.input_file import gunzip, read_bytes, read_text, read_yaml

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


def test_files_are_read_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("a\r\nbé".encode())
    assert read_bytes(tmp_path / "text") == "a\r\nbé".encode()
    assert read_text(tmp_path / "text") == (tmp_path / "text").read_text(encoding="utf-8")
    (tmp_path / "x.yaml").write_text("a: &one [1, 2]\nb: *one\n")
    assert read_yaml(tmp_path / "x.yaml") == {"a": [1, 2], "b": [1, 2]}
    assert gunzip(gzip.compress(b"one") + gzip.compress(b"two")) == b"onetwo"


def test_what_never_ends_or_is_too_large_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="pipe or a device"):
            read_bytes(path)
    (tmp_path / "long").write_bytes(b"x" * 11)
    assert len(read_bytes(tmp_path / "long", 11)) == 11
    with pytest.raises(OSError, match="larger than"):
        read_bytes(tmp_path / "long", 10)
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)


@pytest.mark.parametrize(
    ("packed", "problem"),
    [
        (gzip.compress(bytes(10_000), mtime=0), "unpacks to more"),
        (gzip.compress(b"abc", mtime=0)[:-3], "cut off"),
        (b"nonsense", "no gzip"),
    ],
)
def test_what_unpacks_to_too_much_or_is_damaged_is_refused(packed: bytes, problem: str) -> None:
    with pytest.raises(OSError, match=problem):
        gunzip(packed, 9_999)


def test_aliases_that_stand_for_millions_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bomb.yaml").write_text(BOMB)
    with pytest.raises(OSError, match="aliases written out"):
        read_yaml(tmp_path / "bomb.yaml")
    (tmp_path / "circle.yaml").write_text("a: &a [*a]\n")
    with pytest.raises(OSError, match="part of"):
        read_yaml(tmp_path / "circle.yaml")


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


@pytest.mark.parametrize("what", ["pipe", "device", "bomb"])
def test_every_input_of_a_prediction_is_read_so(what: str, tmp_path: Path) -> None:
    """All of them in one process of bounded memory."""
    questions = []
    for place in ("model", "--cluster", "--plan", "--slow", "--router-load", "--lengths"):
        (tmp_path / place).mkdir()
        name = {"model": "in.json", "--router-load": "in.csv", "--lengths": "in.csv"}.get(place, "in.yaml")
        path = tmp_path / place / name
        if what == "pipe":
            os.mkfifo(path)
        elif what == "device":
            path.symlink_to("/dev/zero")
        else:
            path.write_text(BOMB)
        arguments = {"model": "mixtral-8x7b", "--cluster": "h100-sxm:8"} | {place: str(path)}
        model = arguments.pop("model")
        words = [word for pair in arguments.items() for word in pair]
        questions.append(["predict", model, *words, "--global-batch", "8", "--seq", "128", "--no-save"])
    done = subprocess.run(
        [sys.executable, "-c", ASK_ALL],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=240,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(questions), (answers, done.stderr[-500:])
    for (status, said), words in zip(answers, questions, strict=True):
        assert status == 2, (words, said)
        assert said.startswith("windtunnel: error: "), words
        assert len(said.splitlines()) == 1
