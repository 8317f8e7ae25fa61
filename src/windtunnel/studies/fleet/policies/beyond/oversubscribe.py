"""Over-subscription as in ROSE (Sun et al., TPDS 2020), and whom to move when the service beside is late.

    central    packs on what is *requested*; a task that has waited `tau_s` looks for a place as a speculative one
    filter     machines with head-room in every resource, by what was last seen; least used first, those with the task's
               data first of equals; the first `tries` are asked, the first that says yes has it
    node       yes iff used + predicted < theta in every resource
    agent      memory over its size: the youngest speculative task dies. Used > high, or the service slower than its
               target: throttle first; if that was not enough, evict until under `low` and within the target

ROSE evicts the youngest. Re-scheduling by quality of service takes the least of
    w_work x work since checkpoint + w_retries x retries + w_local x locality lost - w_relief x use,
and moves a task rather than killing it where another machine says yes. No code was published: written from abstracts,
and recast from CPUs to the time of a GPU's multiprocessors (soft), its memory (hard) and the links (soft).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.studies.fleet.traits import Traits


@dataclass(frozen=True)
class Rules:
    """Parameters of a policy. Shares are of a machine."""

    speculate: bool = True
    reschedule: bool = False  # victims by state, moves before kills, retries capped
    tau_s: float = 120.0
    tries: int = 4
    theta: float = 0.87  # admission, soft resources
    memory: float = 0.95  # admission, memory
    high: float = 0.95
    low: float = 0.87
    slow: float = 1.06  # of the service beside, over the slow-down that requested tasks alone may cause
    margin: float = 0.9  # of what the service stands beside it, to which guests are throttled
    windows: int = 3  # that the service must be late before a task leaves
    retries: int = 5  # after which a task waits for what it requested
    staleness_s: float = 30.0  # age of what the filter sees
    w_work: float = 1.0 / 600.0  # per second of work since the checkpoint
    w_retries: float = 1.0
    w_local: float = 0.5
    w_relief: float = 4.0  # per share of the machine


@dataclass(frozen=True, slots=True)
class Running:
    """A speculative task as its node's agent sees it."""

    task: int
    started_s: float
    use: float  # share of the machine
    since_checkpoint_s: float
    retries: int
    local: bool


def candidates(
    used: Sequence[float], memory: Sequence[float], need: float, need_memory: float, rules: Rules, home: int
) -> list[int]:
    """Machines to ask, in order."""
    fit = [at for at in range(len(used)) if used[at] + need < rules.theta and memory[at] + need_memory < rules.memory]
    fit.sort(key=lambda at: (round(used[at], 2), at != home, at))
    return fit[: rules.tries]


def admits(used: float, memory: float, link: float, need: tuple[float, float, float], rules: Rules) -> bool:
    """The node's own answer, on what it sees now; `need`: predicted use, memory, link."""
    return used + need[0] < rules.theta and memory + need[1] < rules.memory and link + need[2] < rules.theta


def throttle(over: float, guests_use: float) -> float:
    """What the guests' use is cut to when a machine is `over` its limits by so much: at most by half at once."""
    return min(max(1.0 - over / max(guests_use, 1e-12), 0.5), 1.0)


def youngest(tasks: Sequence[Running]) -> Running:
    """The youngest task, which is ROSE's victim."""
    return max(tasks, key=lambda task: (task.started_s, task.task))


def least_loss(tasks: Sequence[Running], rules: Rules) -> Running:
    """The victim whose leaving costs least for what it frees."""

    def score(task: Running) -> tuple[float, int]:
        loss = rules.w_work * task.since_checkpoint_s + rules.w_retries * task.retries + rules.w_local * task.local
        return loss - rules.w_relief * task.use, task.task

    return min(tasks, key=score)


RULES = {"requested": Rules(speculate=False), "rose": Rules(), "rose-qos": Rules(reschedule=True)}
POLICIES = tuple(
    Traits(name=name, asks="arrival", loop="machines", capacity=frozenset({"shared"}), restarts=False) for name in RULES
)
