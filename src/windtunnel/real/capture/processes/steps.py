"""How many steps a rank runs, and which of them it keeps.

The wanted step is the last, unless later ones may differ: the script's own conditions say so (`step % 4 == 0`), or what
is still a first time (control messages, as DistributedDataParallel's second step has), or tests that are made where
nobody sees them, or a loop inside the loop. Then rank 0 goes on, as long as that costs no more than it has cost so far:
until the conditions have held, or else until it has seen the same steps twice over. The others run as many as it then
says: those before the steps repeat, and one period.

Where a test or an error of which nothing is known may end a round (`except StopIteration: break`), on some ranks alone
maybe, all go on for a while: these steps are not kept, but what they call is compared.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b

from windtunnel.real.capture.fake_tensors.control_flow import script_name
from windtunnel.real.capture.processes.file_mailbox import STEPS, FileMailbox
from windtunnel.real.capture.source.branches import is_joined
from windtunnel.real.capture.source.conditions import MOST_STEPS, Loop
from windtunnel.real.capture.source.rank_tests import numbers_held
from windtunnel.studies.programs.program import RankProgram
from windtunnel.studies.programs.rank_classes.equality import digest

LEAST_BUDGET_S = 10.0  # of CPU time, for steps beyond the wanted one
LEAST_LATE_S = 1.0  # of CPU time, for steps that are only compared
LATE_SHARE = 0.25  # the same, of what it has cost so far
LOOKS = 2  # which loop goes on from step to step shows in two
MOST_FIRST = 8  # steps, from the wanted one on, that may differ before they repeat
SURE = 8  # steps that have to repeat where one before them did not, and two more for each such
ENOUGH = 2 * MOST_STEPS + MOST_FIRST
ON = b"on"  # the answer to who asks for another step; else how many of them are kept
LAST = f"{STEPS}0>0/last"  # how many are kept, for whom the script ended before rank 0 said so


class Steps:
    """The steps of one rank."""

    def __init__(
        self,
        rank: int,
        wanted: int,
        box: FileMailbox,
        timeout_s: float,
        *,
        goes_on: bool,
        files: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`files`: of the user's own, path -> short name."""
        self._rank, self._wanted, self._box, self._timeout_s, self._goes_on = rank, wanted, box, timeout_s, goes_on
        self._files = files
        self.loop = Loop()
        self._looks = 0
        self._numbers: dict[str, int] = {}
        self.digests: list[str] = []  # of the wanted step and those after it
        self.programs: dict[str, RankProgram] = {}
        self.done = False
        self._spent_s = 0.0  # up to the wanted step
        self._begins = 0  # 1 where the wanted step has control messages: the next may have none
        self._hidden: list[str] = []  # conditions of which nothing is known
        self._period = 0  # after which they repeat; 0: not seen
        self._least = 1  # steps that conditions ask for
        self._ran = 0  # steps of `digests`, before any were left out
        self._late = 0  # steps after those, which are only compared
        self._compared = 0  # all of them, where there are late ones
        self.patience_s = 0.0  # of CPU time, for what comes before the next step; 0: any
        self.is_cut = False  # that took longer: the script ends there (of other ranks, where rank 0's has)
        self._settled_s, self._may_part = 0.0, False  # when the kept ones were over; whether rounds may be left then

    def look(self) -> None:
        """A step ends here. How many there are is for rank 0 to say; another rank looks twice, or where it is alone."""
        if self._late or (self._rank and self._goes_on and self._looks >= LOOKS):
            return
        self._looks += 1
        self._numbers = self._numbers or numbers_held(sys._getframe(2), script_name)
        self.loop.look(sys._getframe(2), script_name, conditions=not (self._rank and self._goes_on))

    def take(self, program: RankProgram) -> bool:
        """Keep a step; whether it was the last. Else `patience_s` is for the next, and what comes before it."""
        self.patience_s = 0.0
        if self._late:
            self._late += 1
            self.done = not self._goes_late()
            return self.done
        key = digest(program)
        program = replace(program, facts={**program.facts, "step": self._wanted + len(self.digests)})
        self.digests.append(key)
        self._ran = len(self.digests)
        self.programs.setdefault(key, program)
        if len(self.digests) == 1:
            self._spent_s = time.process_time()
            self._begins = int(any(op.communication is not None and op.communication.is_control for op in program.ops))
            self._hidden = [] if self._rank else self.loop.not_met(self._files())
        self.done = not self._another()
        return self.done

    def _another(self) -> bool:
        if not self._goes_on:
            return False
        seen = self._wanted - 1 + len(self.digests)
        if self._rank:
            word = self._box.get(_key(seen), self._timeout_s)
            if word != ON:
                self._keep_as_told(word)
            self.patience_s = LEAST_BUDGET_S  # from then on: whether rank 0 is through
            return word == ON
        budget_s = max(LEAST_BUDGET_S, self._spent_s)
        if self._wants_more(seen) and time.process_time() - self._spent_s < budget_s:
            self._box.post(_key(seen), ON)
            self.patience_s = self._spent_s + budget_s + LEAST_BUDGET_S - time.process_time()
            return True
        self._settle()
        self._late = 1
        return self._goes_late()

    def _goes_late(self) -> bool:
        """Whether rank 0 runs one more step, that is only compared."""
        seen = self._wanted - 2 + self._ran + self._late
        spent_s, budget_s = time.process_time() - self._settled_s, max(LEAST_LATE_S, LATE_SHARE * self._settled_s)
        if self._may_part and seen < MOST_STEPS and spent_s < budget_s:
            self._box.post(_key(seen), ON)
            self.patience_s = budget_s + LEAST_BUDGET_S - spent_s
            return True
        self._late -= 1
        self._say_last()
        return False

    def _wants_more(self, seen: int) -> bool:
        period = self.loop.period()
        needed = max(self._wanted - 1 + self._begins + period, seen + self.loop.steps_more(seen))
        if seen < min(needed, MOST_STEPS):
            self._least = max(self._least, min(needed, MOST_STEPS) - self._wanted + 1)
            return True
        # Behind a `Join`, who is through waits for those who are not, and these may have been stopped.
        rounds = 0 if is_joined(sorted(self._files())) else self.loop.rounds()
        searched = bool(self._hidden) or (rounds > 0 and len(self.digests) <= 2 * rounds + MOST_FIRST)
        return seen < ENOUGH and (searched or not self._repetition())

    def _repetition(self) -> tuple[int, int] | None:
        """(steps before they repeat, the least period): as the conditions have it, or else as was seen twice."""
        count, longest = len(self.digests), self.loop.period()
        least = SURE if longest == 1 and self.loop.changes() else longest
        for period in (number for number in range(1, longest + 1) if longest % number == 0):
            for first in range(self._begins + 1):
                if count >= first + least and self._repeats(first, period):
                    return first, period
        for period in range(1, count // 2 + 1):
            for first in range(min(MOST_FIRST, count - 2 * period) + 1):
                sure = 2 * period if first <= self._begins else max(2 * period, SURE + 2 * first)
                if count - first >= sure and self._repeats(first, period):
                    return first, period
        return None

    def _repeats(self, first: int, period: int) -> bool:
        digests = self.digests[first:]
        return all(word == other for word, other in zip(digests, digests[period:], strict=False))

    def _settle(self) -> None:
        """Find the period, and leave out what only repeats."""
        self._settled_s = time.process_time()
        self._may_part = bool(self.loop.leaves) and not is_joined(sorted(self._files()))
        repetition = self._repetition()
        if repetition is not None:
            self._period = repetition[1]
            self._keep(max(sum(repetition), self._least))

    def _say_last(self) -> None:
        """Tell the others how many steps to run and to keep."""
        self._compared = self._ran + self._late if self._late else 0
        for number in {self._compared or len(self.digests), self._compared or self._ran}:
            self._box.post(_key(self._wanted - 1 + number), self._word())
        self._box.post(LAST, self._word())

    def _word(self, more: int = 0) -> bytes:
        return f"{len(self.digests)} {self._compared + more}".encode()

    def _keep_as_told(self, word: bytes) -> int:
        kept, self._compared = map(int, word.split())
        self._keep(kept)
        return kept

    def _keep(self, count: int) -> None:
        del self.digests[count:]
        self.programs = {key: self.programs[key] for key in dict.fromkeys(self.digests)}

    def close(self) -> None:
        """The script is over: there is no other step, whoever asks; and all keep as many as rank 0, when it has ended.

        Who ran beside rank 0 may have been told to go on at a step that rank 0 has left out since.
        """
        if not self._goes_on or self.done:
            return
        if not self.digests:
            if not self._rank:  # whoever comes to the wanted step ends with it
                self._box.post(_key(self._wanted), b"1 0")
            return
        if self._rank:
            self._keep_as_told(self._box.get(LAST, self._timeout_s))
        else:
            if self._late:  # all were told to go on from its last whole step; who takes another is compared so far
                self._late -= 1
                self._compared = self._ran + self._late
                self._box.post(LAST, self._word())
            else:
                self._settle()
                self._say_last()
            self._box.post(_key(self._wanted + self._ran + self._late), self._word(int(self._compared > 0)))

    def is_behind(self) -> bool:
        """Whether all that is kept and compared is there: an error from now on is none of theirs."""
        if not self._rank or not self._goes_on or not self.digests:
            return self._late > 0 or self.is_cut
        kept = self._keep_as_told(self._box.get(LAST, self._timeout_s))
        return self._ran >= (self._compared or kept)

    def may_be_cut(self) -> bool:
        """Whether a script that takes long may end: rank 0's, another's where rank 0 is through and wants no more."""
        return not self._rank or (self._box.holds(LAST) and self.is_behind())

    @property
    def last_step(self) -> int | None:
        """The number of the last step that all ranks run; None where this one has come to none."""
        return self._wanted - 1 + (self._compared or len(self.digests)) if self.digests else None

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

    def unseen(self) -> list[str]:
        """What may lie beyond the steps that were run."""
        seen = self._wanted - 1 + self._ran
        texts = self.loop.unseen(seen, seen + self._late)
        if self._goes_on and not self._rank and self._ran and not self._period:
            texts.append(f"steps {self._wanted} to {seen} differ and were not seen to repeat: more are needed")
        if self.is_cut and not self._compared:
            texts.append(f"what comes behind step {seen} takes long (an evaluation?) and was cut short")
        return texts + [f"{words} was not evaluated, and {seen} steps were seen" for words in self._hidden]

    def facts(self) -> dict[str, object]:
        """For the launcher."""
        return {
            "digest": self.digest,
            "main": self.main,
            "digests": self.digests,
            "period": self._period or 1,
            "unseen": self.unseen(),
            "is_cut": self.is_cut,
            "numbers": self._numbers,
            "loops": [[*loop, length] for loop, length in self.loop.lengths.items()],
        }


def _key(seen: int) -> str:
    return f"{STEPS}0>0/{seen}"
