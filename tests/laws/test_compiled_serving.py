"""Serving as `hatch_build.py` compiles it gives the stamps and counts of its source, on random replicas."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_compiled_serving_answers_as_its_source(tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), str(ROOT)]
    subprocess.run(install, env={**os.environ, "HATCH_BUILD_HOOKS_ENABLE": "1"}, check=True)
    answers = []
    for place in (ROOT / "src", tmp_path):
        path = os.pathsep.join(str(one) for one in (place, ROOT / "tests/unit/studies/serving"))
        command = [sys.executable, str(ROOT / "tests/laws/random_replicas.py"), "1000"]
        ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, stdout=subprocess.PIPE)
        answers.append(ran.stdout.decode().splitlines())
    assert [one[0] for one in answers] == ["source", "compiled"]
    assert answers[0][1:] == answers[1][1:]
