"""Slurm's compiled loops against the policy on the clock: every start alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from random_slurm import differences


def test_the_loops_start_every_job_when_the_policy_does() -> None:
    """Uncompiled: compiling takes half a minute."""
    script = Path(__file__).with_name("random_slurm.py")
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, script, "40"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "equal"


@pytest.mark.long
def test_the_compiled_loops_too() -> None:
    assert not any(differences(seed) for seed in range(200))
