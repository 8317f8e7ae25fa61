"""Slices of MIG for live jobs, cut by nvidia-smi where the scheduler has a place for them.

A run begins on GPUs without slices, so that all it meets later are its own. One outlives its job, until its place is
needed or the run is over: a scheduler that was killed leaves nothing that the next does not clear away, and what runs
keeps its slice. A GPU instance in use is not destroyed; nvidia-smi says so. Source: NVIDIA's MIG user guide, "Creating
GPU Instances" (a placement is `PROFILE:START`) and "Destroying GPU Instances".
"""

from __future__ import annotations

import re
import subprocess

from windtunnel.errors import UserError

WAIT_S = 60.0
MOST = 8  # slices of memory
INSTANCE = re.compile(r"\|\s*\d+\s+MIG \S+\s+\d+\s+(\d+)\s+(\d+):(\d+)")  # its number, where it begins, its size
DEVICE = re.compile(r"\(UUID: (MIG-[^)]+)\)")


def begin(gpu: int) -> None:
    """Raises UserError where a GPU has slices already, or MIG is off."""
    if found := INSTANCE.findall(_ask("mig", "-i", str(gpu), "-lgi", none="No GPU instances found")):
        remedy = (
            f"`nvidia-smi mig -i {gpu} -dci; nvidia-smi mig -i {gpu} -dgi` destroys them, or name them as `devices`"
        )
        raise UserError(f"GPU {gpu} has {len(found)} slices that this run did not cut: {remedy}")


def clear(gpu: int, start: int = 0, size: int = MOST) -> None:
    """Destroy what lies in a place."""
    on = ("mig", "-i", str(gpu))
    for number, begins, length in INSTANCE.findall(_ask(*on, "-lgi", none="No GPU instances found")):
        if int(begins) < start + size and start < int(begins) + int(length):
            _ask(*on, "-gi", number, "-dci", none="No compute instances found")
            _ask(*on, "-gi", number, "-dgi")


def cut(gpu: int, profile: str, start: int, size: int) -> str:
    """A new slice, by CUDA's name."""
    clear(gpu, start, size)
    before = set(DEVICE.findall(_ask("-L")))
    _ask("mig", "-i", str(gpu), "-cgi", f"{profile}:{start}", "-C")
    new: list[str] = [name for name in DEVICE.findall(_ask("-L")) if name not in before]
    if len(new) != 1:
        raise UserError(f"GPU {gpu}: `nvidia-smi -L` has {len(new)} new slices after {profile} was cut")
    return new[0]


def _ask(*words: str, none: str = "") -> str:
    """What nvidia-smi prints; nothing where it says that there is none of what was asked for."""
    command = ("nvidia-smi", *words)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"`{' '.join(command)}` does not run ({error}): a live cut of MIG needs it") from None
    said = " ".join((done.stdout + done.stderr).split())
    if none and none in said:
        return ""
    if done.returncode or "No MIG-enabled devices found" in said:
        remedy = "MIG is turned on by `nvidia-smi -i GPU -mig 1`, as root"
        raise UserError(f"`{' '.join(command)}` failed: {said[:200] or f'status {done.returncode}'}; {remedy}")
    return done.stdout
