"""How many steps a rank runs, and which of them it keeps.

The wanted step is the last, unless the script's own conditions (`step % 4 == 0`) say that later ones differ: then rank
0 goes on until these have held, as long as that costs no more than it has cost so far, and the others do as rank 0.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import replace
from hashlib import blake2b

from windtunnel.real.capture.fake_tensors.control_flow import script_name
from windtunnel.real.capture.processes.conditions import MOST_STEPS, Loop
from windtunnel.real.capture.processes.file_mailbox import STEPS, FileMailbox
from windtunnel.studies.programs.program import RankProgram
from windtunnel.studies.programs.rank_classes.equality import digest

LEAST_BUDGET_S = 10.0  # of CPU time, for steps beyond the wanted one


class Steps:
    """The steps of one rank."""

    def __init__(self, rank: int, wanted: int, box: FileMailbox, timeout_s: float, *, goes_on: bool) -> None:
        self._rank, self._wanted, self._box, self._timeout_s, self._goes_on = rank, wanted, box, timeout_s, goes_on
        self.loop = Loop()
        self.digests: list[str] = []  # of the wanted step and those after it
        self.programs: dict[str, RankProgram] = {}
        self.done = False
        self._count = 0
        self._spent_s = 0.0  # up to the wanted step

    def look(self) -> None:
        """A step ends here."""
        self._count += 1
        self.loop.look(sys._getframe(2), script_name)

    def take(self, program: RankProgram) -> bool:
        """Keep a step; whether it was the last."""
        key = digest(program)
        program = replace(program, facts={**program.facts, "step": self._wanted + len(self.digests)})
        self.digests.append(key)
        self.programs.setdefault(key, program)
        if len(self.digests) == 1:
            self._spent_s = time.process_time()
        self.done = not self._another()
        return self.done

    def _another(self) -> bool:
        if not self._goes_on:
            return False
        seen = self._wanted - 1 + len(self.digests)
        key = f"{STEPS}0>0/{seen}"
        if self._rank:
            return self._box.get(key, self._timeout_s) == b"on"
        needed = max(self._wanted - 1 + self.loop.period(), seen + self.loop.steps_more(seen))
        budget_s = max(LEAST_BUDGET_S, self._spent_s)
        another = seen < min(needed, MOST_STEPS) and time.process_time() - self._spent_s < budget_s
        self._box.post(key, b"on" if another else b"end")
        return another

    def close(self) -> None:
        """There is no other step, whoever asks."""
        if self._goes_on and not self._rank:
            self._box.post(f"{STEPS}0>0/{self._wanted + len(self.digests)}", b"end")

    @property
    def main(self) -> str:
        """The digest of most steps; of as many, of the last."""
        counts = Counter(self.digests)
        return max(self.digests, key=lambda key: (counts[key], len(self.digests) - self.digests[::-1].index(key)))

    @property
    def digest(self) -> str:
        """Equal for ranks whose steps are."""
        if len(self.programs) == 1:
            return self.digests[0]
        return blake2b("".join(self.digests).encode(), digest_size=16).hexdigest()

    def period(self) -> int:
        """The least number of steps after which they repeat, of those that the script's conditions allow."""
        most = self.loop.period()
        for period in range(1, most + 1):
            pairs = zip(self.digests, self.digests[period:], strict=False)
            if most % period == 0 and all(one == other for one, other in pairs) and len(self.digests) >= period:
                return period
        return 1

    def facts(self) -> dict[str, object]:
        """For the launcher."""
        seen = self._wanted - 1 + len(self.digests)
        return {
            "digest": self.digest,
            "main": self.main,
            "digests": self.digests,
            "period": self.period(),
            "unseen": self.loop.unseen(seen),
        }
