"""Slices of MIG for live jobs, cut by nvidia-smi where the scheduler has a place for them.

A run begins on GPUs without slices, and destroys only those that its journal says it cut. One outlives its job, until
its place is needed or the run is over: a scheduler that was killed leaves nothing that the next does not clear away,
and what runs keeps its slice. A GPU instance in use is not destroyed; nvidia-smi says so. Source: NVIDIA's MIG user
guide, "Creating GPU Instances" (a placement is `PROFILE:START`) and "Destroying GPU Instances".
"""

from __future__ import annotations

import re
import subprocess

from windtunnel.errors import UserError

WAIT_S = 60.0
INSTANCE = re.compile(r"\|\s*\d+\s+MIG \S+\s+\d+\s+(\d+)\s+(\d+):(\d+)")  # its number, where it begins, its size
DEVICE = re.compile(r"\(UUID: (MIG-[^)]+)\)")


def begin(gpu: int) -> None:
    """Raises UserError where a GPU has slices already, or MIG is off."""
    if found := INSTANCE.findall(instances(gpu)):
        remedy = f"`nvidia-smi mig -i {gpu} -dci`, then `-dgi`, destroys them, or name them as `devices`"
        raise UserError(f"GPU {gpu} has {len(found)} slices that this run did not cut: {remedy}")


def instances(gpu: int) -> str:
    """What nvidia-smi lists of them."""
    return _ask("mig", "-i", str(gpu), "-lgi", none="No GPU instances found")


def clear(gpu: int, start: int, size: int, *others: int) -> None:
    """Destroy the slice of a place, but for those that were there before it was cut."""
    for number, *place in INSTANCE.findall(instances(gpu)):
        if place == [str(start), str(size)] and int(number) not in others:
            _ask("mig", "-i", str(gpu), "-gi", number, "-dci", none="No compute instances found")
            _ask("mig", "-i", str(gpu), "-gi", number, "-dgi")


def cut(gpu: int, profile: str, start: int) -> str:
    """A new slice, by CUDA's name."""
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
    answer = " ".join((done.stdout + done.stderr).split())
    if none and none in answer:
        return ""
    off = "No MIG-enabled devices found" in answer
    if done.returncode or off:
        remedy = "; MIG is turned on by `nvidia-smi -i GPU -mig 1`, as root" if off else ""
        raise UserError(f"`{' '.join(command)}` failed: {answer[:200] or f'status {done.returncode}'}{remedy}")
    return done.stdout
