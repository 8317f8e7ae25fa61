"""The command line called in this process: the same `main`, without the seconds that a new interpreter takes to import.

What a process of its own proves more (signals, closed pipes, hash seeds, encodings of a terminal) has a process of its
own in test_command_line.py.
"""

from __future__ import annotations

import os
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from windtunnel.cli import main


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
    return CompletedProcess(words, status, *said)
