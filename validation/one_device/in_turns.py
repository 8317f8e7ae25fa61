"""A calibration that is made a little at a time, between the runs that it is held against.

On a shared machine an hour is not like the next: steps of the same run took 0.78 s at one and 0.87 s three hours later,
as its usual ones. What is measured all along is of the same machine as the steps are.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

START_S = 3.0  # of a turn, a quarter at most, that are no part of the budget
FIRST_SHARE = 4  # turns that the first one is as long as: what an op costs besides its kernel is measured in one go
MOST_TO_FINISH_S = 300.0


class Calibrating:
    """`windtunnel calibrate`, ended after each turn; it goes on with what it has.

    `turn_s`: seconds of each of `turns`.
    """

    def __init__(self, out: Path, device: str, threads: int, turns: int, turn_s: float) -> None:
        self.turn_s, self.first, self.done = turn_s, True, False
        budget_s = max(turn_s, (turns - 1 + FIRST_SHARE) * turn_s - turns * min(START_S, turn_s / 4))
        self.command = [sys.executable, "-m", "windtunnel", "calibrate", "--device", device, "--out", str(out)]
        self.command += ["--threads", str(threads), "--budget", str(budget_s)]

    def turn(self) -> None:
        """Measure for one turn, unless all of the budget is spent: another run would begin anew."""
        if self.done:
            return
        process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        seconds, self.first = (FIRST_SHARE if self.first else 1) * self.turn_s, False
        try:
            _, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # not SIGINT, which a job in the background ignores
            process.communicate()
        else:
            if process.returncode:
                raise SystemExit(said.strip())
            self.done = True

    def finish(self) -> None:
        """Spend what is left and write the file."""
        if not self.done:
            subprocess.run(self.command, check=True, timeout=MOST_TO_FINISH_S)
