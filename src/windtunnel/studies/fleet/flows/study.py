"""One trace of coflows under one policy: when each starts and ends.

Real arrivals and amounts, rates anew whenever anything changes, integer nanoseconds. Completion time (CCT) counts from
the arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import SpecError, UnknownNameError
from windtunnel.files.write import write_csv
from windtunnel.physics.engine.coflows import MIB, Coflows, Finish, Queues, replay_coflows
from windtunnel.questions.asked.fleet.further import FleetFlows
from windtunnel.questions.header import Answer
from windtunnel.studies.fleet.flows.trace import Trace, of_trace, read_trace
from windtunnel.units import parse_bandwidth

PORT_BYTES_PER_S = 128 * MIB  # CoflowSim's port, 1,024 Mib/s
POLICIES = ("sebf", "scf", "ncf", "lcf", "fifo", "fair", "pfp", "d-clas", "fai")
ALIASES = {"aalo": "d-clas", "dclas": "d-clas"}


@dataclass(frozen=True)
class FlowsAnswer:
    """Of every coflow in the order of the trace. NaN and -1 where the coflow was ignored."""

    policy: str
    coflow: tuple[str, ...]
    start_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]
    bytes_total: float

    @property
    def ignored(self) -> tuple[str, ...]:
        """Coflows without a mapper: they cannot send."""
        return tuple(name for name, start in zip(self.coflow, self.start_s, strict=True) if np.isnan(start))

    @property
    def cct_s(self) -> NDArray[np.float64]:
        """Completion times of those that were not ignored."""
        return (self.finish_s - self.start_s)[~np.isnan(self.start_s)]

    def to_dict(self) -> dict[str, object]:
        """Aggregates, in plain numbers."""
        cct = self.cct_s
        some = len(cct) > 0
        levels = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}
        spread = {name: float(np.percentile(cct, level)) for name, level in levels.items()} if some else {}
        return {
            "cct_s": {"mean": float(cct.mean()), **spread, "max": float(cct.max())} if some else None,
            "makespan_s": float(np.nanmax(self.finish_s) - np.nanmin(self.start_s)) if some else 0.0,
            "coflows": len(self.coflow),
            "coflows_ignored": list(self.ignored),
            "bytes_total": self.bytes_total,
            "clock": "exact",
            "policy": self.policy,
        }


@dataclass(frozen=True)
class FlowsStudy(Answer):
    """One trace under each policy."""

    trace: str
    ports: int
    answers: tuple[FlowsAnswer, ...]
    warnings: tuple[str, ...]

    @property
    def provenance(self) -> dict[str, str]:
        """Whose coflows they are."""
        return {"flows": self.trace}

    def to_dict(self) -> dict[str, object]:
        """The study as JSON-able data."""
        policies = {answer.policy: answer.to_dict() for answer in self.answers}
        return {"trace": self.trace, "ports": self.ports, "policies": policies}

    def write_rows(self, path: Path) -> None:
        """Start and end of every coflow; with several policies one after the other, by name."""
        several = len(self.answers) > 1
        lines = []
        for answer in self.answers:
            for name, start, finish in zip(
                answer.coflow, answer.start_s.tolist(), answer.finish_s.tolist(), strict=True
            ):
                words = [name, "", ""] if start != start else [name, f"{start:.9f}", f"{finish:.9f}"]
                lines.append([*([answer.policy] if several else []), *words])
        write_csv(path, [*(["policy"] if several else []), "coflow", "start_s", "finish_s"], lines)


def policy_named(name: str) -> str:
    """The policy of this name or other name. Raises UnknownNameError."""
    policy = ALIASES.get(name.lower(), name.lower())
    if policy not in POLICIES:
        raise UnknownNameError("policy of flows", name, (*POLICIES, *ALIASES))
    return policy


def run_flows(
    trace: Trace, policy: str, port_bytes_per_s: float = PORT_BYTES_PER_S, queues: Queues | None = None
) -> FlowsAnswer:
    """When every coflow of a trace starts and ends.

    Raises UnknownNameError for a policy that there is not.
    """
    policy = policy_named(policy)
    names = tuple(shuffle.name for shuffle in trace.shuffles)
    amounts = [sum(mib for _, mib in s.reducers) * MIB if s.mappers else 0.0 for s in trace.shuffles]
    coflows = of_trace(trace, port_bytes_per_s)
    ends = _exact(coflows, policy, queues)
    ignored = np.array([not shuffle.mappers for shuffle in trace.shuffles], bool)
    start, finish = (np.where(ignored, np.nan, t / 1e9) for t in (coflows.arrival_ns, ends.coflow_ns))
    return FlowsAnswer(policy, names, start, finish, sum(amounts))


def _exact(coflows: Coflows, policy: str, queues: Queues | None) -> Finish:
    if policy in ("sebf", "fair", "pfp", "d-clas", "fai"):
        return replay_coflows(coflows, policy, queues)
    return replay_coflows(coflows._replace(key=static_key(coflows, policy)), "keyed", queues)


def static_key(coflows: Coflows, policy: str) -> NDArray[np.float64]:
    """What the simple orders go by: longest flow (scf), fewer of senders and receivers (ncf), bytes (lcf), none (fifo).

    Senders and receivers are told apart as the even and odd links of `traffic.on_switch`.
    """
    n = len(coflows.arrival_ns)
    key = np.zeros(n)
    if policy == "scf":
        np.maximum.at(key, coflows.coflow, coflows.bytes_total)
    elif policy == "lcf":
        np.add.at(key, coflows.coflow, coflows.bytes_total)
    elif policy == "ncf":
        width = len(coflows.capacity_bytes_per_s)
        of_entry = np.repeat(coflows.coflow, np.diff(coflows.link_ptr))
        pairs = np.unique(of_entry * width + coflows.link_idx)
        sides = [np.bincount(pairs[pairs % 2 == side] // width, minlength=n) for side in (0, 1)]
        key = np.minimum(*sides).astype(float)
    return key


def answer_flows(question: FleetFlows) -> FlowsStudy:
    """Coflows under each policy (`FlowsStudy`). Raises UserError."""
    port = question.port
    names = [policy_named(word.strip()) for word in question.policy.split(",")]
    if len(set(names)) < len(names):
        raise SpecError("--policy", question.policy, "name each policy once")
    if port.replace(".", "").strip().isdigit():  # as likely meant in Gb/s as in bytes per second
        raise SpecError("--port", port, f"say the unit: {port.strip()}Gb/s or {port.strip()}MB/s")
    rate = parse_bandwidth(port, "--port") if port else PORT_BYTES_PER_S
    read = read_trace(Path(question.trace))
    answers = tuple(run_flows(read, name, rate) for name in names)
    none = answers[0].ignored
    warnings = (f"{len(none)} coflows have no mapper and were ignored: {', '.join(none[:20])}",) if none else ()
    return FlowsStudy(question.trace, read.n_ports, answers, warnings)
