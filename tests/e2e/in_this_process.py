"""The command line called in this process: the same `main`, without the seconds that a new interpreter takes to import.

What a process of its own proves more (signals, closed pipes, hash seeds, encodings of a terminal) has a process of its
own in test_command_line.py.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import patch

from windtunnel.faces.cli import main
from windtunnel.questions.header import SCHEMA

INFEASIBLE = 3
LAUNCHERS = ("capture", "run")  # whose words after the script are the script's


def command_line(*words: str, cwd: Path | None = None, **environment: str) -> CompletedProcess[str]:
    """Status, output and errors of `windtunnel WORDS`, as `subprocess.run` gives them."""
    out, err = (TextIOWrapper(BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with (
        patch.dict(os.environ, environment),
        patch.object(sys, "argv", ["windtunnel", *words]),
        chdir(cwd or Path.cwd()),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        status = main(words)
    said = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    if "--json" in words and status in (0, INFEASIBLE) and words[0] not in LAUNCHERS:
        assert_header(json.loads(said[0]))
    return CompletedProcess(words, status, *said)


def assert_header(document: dict[str, Any]) -> None:
    """What the JSON of every verb begins with: docs/result-schema.md."""
    assert document["schema"] == SCHEMA
    assert document["version"]
    assert isinstance(document["study"], str)
    assert isinstance(document["spec"], (dict, list))  # a list: fields in which two runs differ
    assert document["reproduce"].startswith("windtunnel ")
    if document["band"] is not None:
        assert set(document["band"]) == {"of", "p5", "p95"}
        assert document["band"]["p5"] <= document["band"]["p95"]
    assert document["provenance"] is None or isinstance(document["provenance"], dict)
    assert all(isinstance(text, str) for text in document["warnings"])
