"""Whether the machine runs as it usually does, by a reference GEMM whose time says how fast it is.

On a shared host others slow a core by 20 to 90 % for seconds to hours, and nothing else shows it. A step counts when
the GEMM right before and right after it took within 10 % of what it usually takes, the median over all runs so far.

    python validation/one_device/machine.py --usual 0.0045 --patience 120      looks until it does, as JSON
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from windtunnel.real.calibrate.interference_filter import is_usual

FIRST_LOOKS, BETWEEN_LOOKS_S = 20, 0.5  # at the reference, until it is known what is usual
REFERENCE_SIZE = {"cpu": 768, "cuda": 4096}


class Reference:
    """A GEMM whose time says how fast the machine is."""

    def __init__(self, torch: Any, device: str) -> None:
        size = REFERENCE_SIZE[device]
        self._a, self._b, self._c = (torch.randn(size, size, device=device) for _ in range(3))
        self._torch, self._device = torch, device
        self.seconds()

    def seconds(self) -> float:
        """The second and third of three calls, the faster one: the first finds the caches full of other things."""
        found = []
        for _ in range(3):
            begun = time.perf_counter()
            self._torch.mm(self._a, self._b, out=self._c)
            synchronize(self._torch, self._device)
            found.append(time.perf_counter() - begun)
        return min(found[1:])

    def median(self) -> float:
        """Of five measurements."""
        return statistics.median(self.seconds() for _ in range(5))


def synchronize(torch: Any, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def counted(references: Sequence[float], usual_s: float) -> list[bool]:
    """Whether each step counts, from the references around them: one more than steps. `usual_s`: nan if not known."""
    usual_s = statistics.median(references) if math.isnan(usual_s) else usual_s
    return [is_usual(before, usual_s) and is_usual(after, usual_s) for before, after in pairwise(references)]


def cpu_seconds() -> tuple[float, float]:
    """Seconds that all processors were busy, and that the hypervisor gave to others, since boot."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return 0.0, 0.0
    user, nice, system, _idle, _wait, irq, soft, steal = fields
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + soft) / ticks, steal / ticks


def wait_for_usual(device: str, threads: int, patience_s: float, usual_s: float) -> list[float]:
    """Looks at the reference until it is as usual, or for so long; some, if what is usual is not known (nan).

    In a process of its own: the one that asks stays small.
    """
    command = [sys.executable, str(Path(__file__)), "--usual", str(usual_s), "--patience", str(patience_s)]
    command += ["--device", device, "--threads", str(threads)]
    looks: list[float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return looks


def looks_until_usual(device: str, threads: int, patience_s: float, usual_s: float) -> list[float]:
    """As `wait_for_usual`, here."""
    import torch

    torch.set_num_threads(threads)
    reference, until = Reference(torch, device), time.monotonic() + patience_s
    looks = [reference.median()]

    def is_enough() -> bool:
        if math.isnan(usual_s):
            return len(looks) >= FIRST_LOOKS
        return is_usual(looks[-1], usual_s) or time.monotonic() >= until

    while not is_enough():
        time.sleep(BETWEEN_LOOKS_S)
        looks.append(reference.median())
    return looks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--usual", type=float, default=math.nan, help="seconds of the reference; nan: not known")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to look at most")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: not yet run on a GPU")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    print(json.dumps(looks_until_usual(options.device, options.threads, options.patience, options.usual)))


if __name__ == "__main__":
    main()
