"""Files that a user names: what would wait for ever, never end or not fit is an error, in bounded memory."""

from __future__ import annotations

import gzip
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from windtunnel.errors import InputFileError, SpecError
from windtunnel.faces.cli import main
from windtunnel.faces.report.run_list import RunList
from windtunnel.files.bytes import gunzip, path_of, read_bytes, read_text
from windtunnel.files.document import read_document

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


@contextmanager
def bounded() -> Iterator[None]:
    """At most 3 GiB of memory more than now, and a minute."""

    def late(*_: object) -> None:
        raise TimeoutError("a question took a minute")

    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    alarm = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (now + (3 << 30), before[1]))
    signal.alarm(60)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, alarm)
        resource.setrlimit(resource.RLIMIT_AS, before)


def deep(opened: str, closed: str) -> str:
    return opened * 200_000 + "1" + closed * 200_000


HOSTILE = {
    "alias bomb": BOMB,
    "circle": "a: &a [*a]\n",
    "python": "a: !!python/object/apply:os.system ['touch ran']\n",
    "NaN": '{"job": NaN, "gpus": NaN}',
    "NUL": "a,b\n\0,\0\n",
    "not UTF-8": b"a,b\n\xff\xfe,1\n",
    "deep list": deep("[", "]"),
    "deep mapping": deep('{"a": ', "}"),
    "deep block": "- " * 200_000 + "x\n",
    "many values": "[" + "0," * 3_000_000 + "0]",
    "gzip bomb": gzip.compress(bytes(70 << 20)),
    "long number": '{"gpus": ' + "9" * 5000 + "}",
    "empty": "",
}
PLACES = ("pipe", "folder", "sparse", "/dev/zero", "/proc/self/mem")


def hostile(what: str, path: Path) -> None:
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what.startswith("/"):
        path.symlink_to(what)
    elif what == "sparse":
        with path.open("wb") as file:
            file.truncate(20 << 30)
    else:
        content = HOSTILE[what]
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


PREDICT = ["predict", "mixtral-8x7b", "--cluster", "h100-sxm:8", "--global-batch", "8", "--seq", "128", "--no-save"]
FLEET = ["fleet", "jobs.csv", "--cluster", "v100:8"]
SERVE = ["serve", "llama-3.2-1b", "--cluster", "h100-sxm:1"]
REQUESTS = ["--prompt", "10", "--output", "5", "--rate", "1"]
SURVIVE = ["survive", "--cluster", "h100-sxm:16", "--seeds", "2"]
# Every verb that reads a file, at every place where it does.
QUESTIONS: dict[str, list[list[str]]] = {
    "in.json": [
        ["predict", "FILE", *PREDICT[2:]],
        [*PREDICT, "--plan", "FILE"],
        ["fleet", "FILE", *FLEET[2:]],
        ["explain", "FILE"],
        ["compare", "FILE", "FILE"],
        ["whatif", "FILE", "--set", "plan.tp=2"],
    ],
    "in.yaml": [
        [*PREDICT[:3], "FILE", *PREDICT[4:]],
        [*PREDICT, "--plan", "FILE"],
        [*PREDICT, "--slow", "FILE"],
        ["plan", "mixtral-8x7b", "--cluster", "FILE"],
        ["sweep", "FILE", "--out", "out.parquet"],
        ["fleet", "FILE", *FLEET[2:]],
        [*FLEET[:3], "FILE"],
        [*FLEET, "--policy", "FILE"],
        [*FLEET, "--policy", "lyra", "--serving", "FILE"],
        ["serve", "pool", "FILE"],
        ["fleet", "live", "FILE", "--cluster", "gpu:1x4", "--policy", "srtf"],
        [*SERVE, *REQUESTS, "--engine", "FILE"],
        [*SURVIVE, "--failures", "FILE"],
        ["calibrate", "--show", "FILE"],
    ],
    "in.csv": [
        [*PREDICT, "--router-load", "FILE"],
        [*PREDICT, "--lengths", "FILE"],
        ["fleet", "FILE", *FLEET[2:]],
        [*FLEET, "--policy", "srtf", "--capacity", "FILE"],
        [*SERVE, "--workload", "FILE"],
        [*SERVE, *REQUESTS, "--kernels", "FILE"],
        [*SURVIVE, "--failures", "FILE", "--log", "16:30"],
        ["survive", "spot", "FILE", "--policy", "parcae"],
        ["serve", "spot", SERVE[1], "FILE", *SERVE[2:], *REQUESTS],
        ["fleet", "pack", "FILE", "--cluster", "FILE", "--policy", "fgd"],
        ["fleet", "when", "FILE", "a", *FLEET[2:]],
        ["fleet", "lint", "FILE", *FLEET[2:]],
        ["validate", "FILE"],
    ],
    "in.txt": [["fleet", "FILE", *FLEET[2:]], ["fleet", "flows", "FILE"], [*PREDICT, "--plan", "FILE"]],
    "in.toml": [[*PREDICT, "--plan", "FILE"]],
    "in.jsonl": [[*SERVE, "--workload", "FILE"]],
    "in.parquet": [["fleet", "FILE", *FLEET[2:]], ["explain", "FILE"], ["sweep", "FILE", "--show", "a_vs_b"]],
    "in.et": [["explain", "FILE"]],
    "in.csv.gz": [["fleet", "FILE", *FLEET[2:]]],
    "in.json.gz": [["explain", "FILE"]],
}


@pytest.mark.skipif(sys.platform != "linux", reason="bounds the memory of this process as Linux does")
@pytest.mark.parametrize("what", [*HOSTILE, *PLACES])
def test_every_file_of_every_verb_is_read_within_bounds(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line and exit status 2 each, nothing run. Every third question, so that each meets a third of all files."""
    monkeypatch.chdir(tmp_path)
    Path("jobs.csv").write_text("job,submit_s,gpus,duration_s\na,0,8,100\n")
    asked = []
    for name, questions in QUESTIONS.items():
        Path(name).mkdir()
        hostile(what, Path(name, name))
        asked += [[f"{name}/{name}" if word == "FILE" else word for word in words] for words in questions]
    for words in asked[[*HOSTILE, *PLACES].index(what) % 3 :: 3]:
        with bounded():
            status = main(words)
        message = capsys.readouterr().err
        assert status == 2, (words, message)
        assert message.startswith("windtunnel: error: "), (words, message)
        assert len(message.splitlines()) == 1, (words, message)
        refused_file = "in." in message  # not the line; but an empty TOML is a whole torchtitan plan, of a larger batch
        assert refused_file or (what == "empty" and "--plan" in words), (words, message)
    assert not Path("ran").exists()


@pytest.mark.parametrize("given", [0, 1.5, ["a"], {"a": 1}, None])
def test_what_is_no_path_is_one_error(given: object) -> None:
    with pytest.raises(SpecError, match="file"):
        read_document(given)  # type: ignore[arg-type]


def test_names_that_no_file_has_are_one_error_of_one_line() -> None:
    with pytest.raises(InputFileError, match="too long"):
        read_document("9" * 5000)
    with pytest.raises(InputFileError) as caught:
        read_document("\r\n.yaml")
    assert len(str(caught.value).splitlines()) == 1


def test_every_verb_takes_a_name_too_long_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("jobs.csv").write_text("job,submit_s,gpus,duration_s\na,0,8,100\n")
    every = {tuple(words) for questions in QUESTIONS.values() for words in questions}
    for words in sorted(every | {("calibrate", "show", "FILE")}):
        assert main(["9" * 5000 if word == "FILE" else word for word in words]) == 2, words
        assert len(capsys.readouterr().err.splitlines()) == 1, words


@pytest.mark.parametrize("name", ["9" * 5000, "a/" * 3000, "💥" * 100, "\udcff" * 300])
def test_a_name_that_no_file_can_have_is_one_error(name: str) -> None:
    with pytest.raises(InputFileError, match="too long"):
        path_of(name)
    with pytest.raises(InputFileError, match="folder of runs"):
        RunList(Path(name))
