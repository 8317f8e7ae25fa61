"""Jobs in turns: real processes, of which one at most goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "validation" / "emulation"))

from turns import Job, Started, descendants, in_turns

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
# A shell's child ticks: who stops only the process that was started stops nothing.
TICKS = """
import sys, time
for _ in range(150):
    time.sleep(0.01)
    print(time.perf_counter(), flush=True)
"""


class Pace:
    """As usual, but for these looks."""

    def __init__(self, odd: frozenset[int] = frozenset()) -> None:
        self.odd, self.looks = odd, 0

    def off(self) -> float:
        self.looks += 1
        return 0.5 if self.looks in self.odd else 0.0


def ticking(path: Path, status: int = 0) -> Job:
    def run(started: Started) -> list[float]:
        with path.open("wb") as out:
            words = ["sh", "-c", f'{sys.executable} -c "$0"; exit {status}', TICKS]
            started.append(subprocess.Popen(words, stdout=out))
            if started[0].wait():
                raise SystemExit(f"ended with status {status}")
        return [float(line) for line in path.read_text().split()]

    return Job(run)


def test_one_job_goes_on_at_a_time_and_both_end(tmp_path: Path) -> None:
    jobs = [ticking(tmp_path / name) for name in "ab"]
    assert in_turns(jobs, Pace(), limit=0.1, turn_s=0.3, start_s=0.0, patience_s=1.0) == 0
    for job, other in (jobs, reversed(jobs)):
        assert len(job.result) == 150
        assert len(job.turns) > 2
        inside = [sum(low + 0.05 < tick < high for tick in job.result) for low, high in other.turns[1:]]
        assert sum(inside) == 0
        steps = job.counts(job.result[:-1], [0.0] * 149, 0)
        assert len(steps) > 100
        assert all(any(low <= job.result[at] <= high for low, high in job.turns) for at in steps)


def test_a_turn_after_which_the_cores_are_not_as_usual_does_not_count(tmp_path: Path) -> None:
    jobs = [ticking(tmp_path / name) for name in "ab"]
    in_turns(jobs, Pace(frozenset(range(2, 1000, 2))), limit=0.1, turn_s=0.3, start_s=0.0, patience_s=1.0)
    assert not any(job.turns for job in jobs)


def test_a_job_that_fails_is_told_and_the_other_ended(tmp_path: Path) -> None:
    jobs = [ticking(tmp_path / "a", 3), ticking(tmp_path / "b")]
    with pytest.raises(SystemExit, match="status 3"):
        in_turns(jobs, Pace(), limit=0.1, turn_s=0.3, start_s=0.0, patience_s=1.0)
    assert not any(descendants([one.pid for one in job.started if one.poll() is None]) for job in jobs)
