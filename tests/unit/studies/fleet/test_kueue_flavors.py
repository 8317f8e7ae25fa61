"""Kueue's flavors: its own table cases, and laws of quotas, nodes and reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windtunnel.files.document import read_document
from windtunnel.studies.fleet.clock.decision import Owner
from windtunnel.studies.fleet.clock.running import Running
from windtunnel.studies.fleet.clock.work import Rigid
from windtunnel.studies.fleet.jobs.flavors import why_not
from windtunnel.studies.fleet.jobs.trace import Cohort, Flavor, Quota
from windtunnel.studies.fleet.policies.kueue.books import MARK, Books
from windtunnel.studies.fleet.policies.kueue.flavors import FIT, NO_CANDIDATES, PREEMPT, RECLAIM, by_flavor
from windtunnel.studies.fleet.policies.kueue.policy import Kueue
from windtunnel.studies.fleet.policies.kueue.state import State

FOUND = {"NoCandidates": NO_CANDIDATES, "Preempt": PREEMPT, "Reclaim": RECLAIM}
Case = Mapping[str, Any]


@dataclass(frozen=True)
class Told(Kueue):
    """Kueue to which a case says what a search for victims finds: on each flavor, (what, level)."""

    candidates: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def by_stopping(self, job: Running, state: State) -> tuple[int, int]:
        found, level = self.candidates.get(job.queue.partition(MARK)[2], ("Preempt", 0))
        return FOUND[found], level


def _with_flavors(words: Mapping[str, Any]) -> dict[str, Any]:
    """Words of a queue or cohort as fields; a flavor that is missing has no ResourceFlavor."""
    flavors = {
        each["name"]: Flavor(**{key: value for key, value in each.items() if key not in ("name", "missing")})
        for each in words["flavors"]
        if not each.get("missing")
    }
    return {**words, "flavors": flavors}


def assigned(case: Case) -> list[object]:
    """Flavor, mode and last flavor tried."""
    quotas = [Quota(name, **{"nominal": 0, **_with_flavors(words)}) for name, words in case["queues"].items()]
    cohorts = [Cohort(name, **_with_flavors(words)) for name, words in case.get("cohorts", {}).items()]
    of_flavors, apart = by_flavor(quotas, cohorts)
    policy = Told(0, of_flavors, case.get("fair", False), apart, candidates=case.get("candidates", {}))
    state = State(Books(of_flavors.values(), apart))
    for queue, flavor, amount in case["used"]:
        state.books.queues[f"{queue}{MARK}{flavor}"].add(amount)
    queue, amount = case["asks"]
    flavors = of_flavors[queue].flavors
    fits = [name for name, flavor in flavors.items() if not why_not(flavor, [case.get("pod", {})])]
    job = Running(0, 0, amount, Rigid(1.0), queue=queue, owner=Owner(flavors=",".join(fits) or "none"))
    choice = policy.assign(job, state) if flavors else None
    if choice is None:
        return [None, "NoFit", None]
    mode = "Fit" if choice.mode == FIT else "Preempt"
    return [choice.queue.partition(MARK)[2], mode, choice.last if case["assigned"][2] is not None else None]


def test_flavors_are_assigned_as_in_kueues_own_cases() -> None:
    cases = read_document(Path(__file__).with_name("kueue_flavor_cases.yaml"))
    assert isinstance(cases, list)
    unlike = [(case["case"], assigned(case), case["assigned"]) for case in cases if assigned(case) != case["assigned"]]
    assert not unlike
    assert len(cases) >= 27
