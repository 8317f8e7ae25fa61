"""Damaged files through the command line: an answer, or one line and exit status 2. Never a traceback."""

from __future__ import annotations

import gzip
import json
import random as standard_random
from pathlib import Path
from typing import Any

import kineto_jobs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tables import job, write

from windtunnel.faces.cli.app import main

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def checked(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run `explain`; returns what it said, on either stream."""
    capsys.readouterr()
    status = main(["explain", *words])
    out, err = capsys.readouterr()
    assert status in (0, 2), err
    assert "Traceback" not in err
    if status == 2:
        assert out == ""
        (line,) = err.splitlines()
        assert line.startswith("windtunnel: error: ")
        return line
    if "--json" in words:
        document = json.loads(out, parse_constant=pytest.fail)
        assert document["slowdown"] > 0
    return out


def chakra_text() -> str:
    nodes: list[dict[str, Any]] = []
    for k in range(6):
        attributes = [
            {"name": "stream", "int64Val": str(k % 2)},
            {"name": "pg_name", "stringVal": "0"},
            {"name": "comm_type", "int64Val": 0},
            {"name": "comm_size", "int64Val": 64},
        ]
        kind = "COMM_COLL_NODE" if k % 2 else "COMP_NODE"
        times = {"startTimeMicros": 100 + 10 * k, "durationMicros": 9}
        nodes.append(
            {"id": k, "name": f"n{k}", "type": kind, "dataDeps": [k - 1] if k else [], "attr": attributes, **times}
        )
    return json.dumps({"nodes": nodes})


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[bytes]]:
    """Valid files by format."""
    folder = tmp_path_factory.mktemp("good")
    table = write(job(2, 2, 2, (1, 2)), folder / "ops.parquet").read_bytes()
    ranks = [json.dumps(rank.document()).encode() for rank in kineto_jobs.job(world=2, layers=2, steps=1)]
    return {
        "ops.parquet": [table],
        "rank{}.json": ranks,
        "rank{}.json.gz": [gzip.compress(text) for text in ranks],
        "job.{}.json": [chakra_text().encode()] * 2,
    }


@SETTINGS
@given(st.data())
def test_mutated_files(
    tmp_path: Path, good: dict[str, list[bytes]], capsys: pytest.CaptureFixture[str], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(good)))
    random = standard_random.Random(data.draw(st.integers(0, 2**32)))
    paths = []
    for number, whole in enumerate(good[name]):
        content = bytearray(whole)
        for _ in range(random.choice((0, 1, 3, 20))):
            at = random.randrange(len(content))
            match random.randrange(4):
                case 0:
                    content[at] = random.randrange(256)
                case 1:
                    del content[at : at + random.randrange(1, 40)]
                case 2:
                    content[at:at] = content[: random.randrange(1, 200)]
                case _:
                    content[at : at + 8] = random.choice(
                        (b"-1", b"1e400", b"null", b"[]", b"99999999999999999999", b"NaN")
                    )
            content = content or bytearray(b"{")
        path = tmp_path / name.format(number)
        path.write_bytes(bytes(content[: random.choice((len(content), len(content), len(content) // 2, 5, 0))]))
        paths.append(str(path))
    checked([*paths, "--json"], capsys)


@SETTINGS
@given(st.binary(max_size=400), st.sampled_from(["x.json", "x.et", "x.parquet", "x.json.gz", "x"]))
def test_binary_junk(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, name: str) -> None:
    path = tmp_path / name
    for start in (b"", b"PAR1", b"\x1f\x8b\x08", b'{"traceEvents": [{'):
        path.write_bytes(start + content)
        checked([str(path), "--json"], capsys)


@SETTINGS
@given(st.sampled_from(["", "stage=", "op=", "worker="]), st.text(max_size=12))
def test_any_words_after_without(tmp_path: Path, capsys: pytest.CaptureFixture[str], parts: str, words: str) -> None:
    path = write(job(2, 2, 2, (1, 2)), tmp_path / "ops.parquet")
    checked([str(path), f"--without={parts}{words}"], capsys)
