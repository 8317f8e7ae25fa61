"""`serve scale`: sessions of a served model on replicas that come and go, under each policy.

time per token = base + sum over sessions of (per sequence + per token of context x its mean context + its prompt's
                 time / its tokens), by the engine's own step times: chunks of prompts ride along with decodes
state          = its mean context in the cache; the link is one NIC of the cluster for each GPU of the replica
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from windtunnel.errors import LayoutError, SpecError, UnknownNameError
from windtunnel.physics.hardware.catalogue import cluster_of
from windtunnel.physics.model.catalogue import model_of
from windtunnel.questions.asked.serve.scale import ServeScale
from windtunnel.questions.header import Answer
from windtunnel.studies.serving.build import Engine
from windtunnel.studies.serving.parts import assumed, workload_of
from windtunnel.studies.serving.run import sources_of
from windtunnel.studies.serving.stateful.placing import Room
from windtunnel.studies.serving.stateful.replay import POLICIES, Arrival, Policy, PolicyOutcome, Replicas, replay
from windtunnel.studies.serving.step_time.times import TICKS_PER_S
from windtunnel.studies.serving.study import checkpoint_of, priced
from windtunnel.studies.serving.workload.requests import Workload

MANY = 64  # sequences of the second point of the line


@dataclass(frozen=True, eq=False)
class Scaled(Answer):
    """What each policy did to the same sessions."""

    spec: Mapping[str, object]
    policies: Mapping[str, Mapping[str, float | int]]
    sources: tuple[str, ...]
    warnings: tuple[str, ...]
    JSON_LEAVES_OUT = ("sources", "warnings")

    @property
    def provenance(self) -> dict[str, object]:
        """What prices steps."""
        return {"step times": list(self.sources)}


def answer(question: ServeScale) -> Scaled:
    """Serve the sessions under each policy. Raises UserError."""
    by_name: dict[str, Policy] = {policy: policy for policy in POLICIES}
    names = [name.strip() for name in question.policy.split(",") if name.strip()]
    for name in names:
        if name not in by_name:
            raise UnknownNameError("policy of scaling", name, POLICIES)
    load = workload_of(question.requests, question.load, question.seed)
    if load.turns is not None:
        raise SpecError("workload", load.name, "its sessions come back: give one whose requests stand alone")
    cluster = cluster_of(question.cluster)
    engine = priced(
        model_of(question.model), cluster, question.engine, question.replicas, checkpoint_of(question.model)
    )
    if not engine.fits:
        raise LayoutError("the model leaves no room for a cache", "give a larger --tp")
    base, arrivals = sessions_of(engine, load)
    if question.tpot <= base:
        raise SpecError("--tpot", question.tpot, f"one session alone takes {base * 1e3:.1f} ms a token: give more")
    rules = Replicas(
        base_s=base,
        room=Room(question.tpot - base, engine.memory.kv_per_token * engine.cache_tokens),
        first=question.replicas.replicas,
        most=cluster.n_gpus // engine.gpus,
        start_s=question.start,
        calm_s=question.calm,
        link_bytes_per_s=cluster.scale_out.bandwidth_bytes_per_s,
        longest_stop_s=question.stop,
    )
    refused = sum(arrival.load > rules.room.load for arrival in arrivals)
    notes = (f"{refused} sessions alone are longer than --tpot: each has a replica of its own",) if refused else ()
    spec = {"model": engine.model.name, "sessions": len(arrivals), "tpot_s": question.tpot, "most_replicas": rules.most}
    results = {name: figures(replay(arrivals, rules, by_name[name]), arrivals, question.tpot) for name in names}
    return Scaled(spec, results, sources_of(engine), (*load.notes, *assumed(question.engine, engine.model), *notes))


def sessions_of(engine: Engine, load: Workload) -> tuple[float, list[Arrival]]:
    """(base seconds of a token, sessions): lines through the engine's step times."""
    context = float(np.mean(load.input_tokens) + np.mean(load.output_tokens) / 2)

    def step_s(sequences: int, tokens: float) -> float:
        return engine.times.decode(sequences).at(round(sequences * tokens)) / TICKS_PER_S

    per_token = max(0.0, (step_s(MANY, 2 * context) - step_s(MANY, context)) / (MANY * context))
    each = (step_s(MANY, context) - step_s(1, context)) / (MANY - 1)
    per_sequence = max(0.0, each - per_token * context)
    base = max(0.0, step_s(1, context) - per_sequence - per_token * context)
    times = load.arrival_ns if load.arrival_ns is not None else np.zeros(len(load.input_tokens), np.int64)
    columns = (times.tolist(), load.input_tokens.tolist(), load.output_tokens.tolist())
    arrivals = []
    for at, prompt, tokens in sorted(zip(*columns, strict=True)):
        mean = prompt + tokens / 2
        again = engine.times.mixed(0, 0, [(prompt, 0)], 1) / TICKS_PER_S
        load_s = per_sequence + per_token * mean + again / tokens
        arrivals.append(Arrival(at / 1e9, tokens, load_s, mean * engine.memory.kv_per_token, again * mean / prompt))
    return base, arrivals


def figures(run: PolicyOutcome, arrivals: list[Arrival], tpot_s: float) -> dict[str, float | int]:
    """A policy in numbers; seconds from when a session comes."""
    both = list(zip(run.sessions, arrivals, strict=True))
    took = np.array([seen.ended_s - arrival.at_s for seen, arrival in both])
    waited = np.array([seen.began_s - arrival.at_s for seen, arrival in both])
    paced = np.array([(seen.ended_s - seen.began_s) / arrival.tokens for seen, arrival in both])
    return {
        "mean_s": float(took.mean()),
        "p99_s": float(np.quantile(took, 0.99)),
        "waited_s": float(waited.mean()),
        "late": float((paced > tpot_s * (1 + 1e-9)).mean()),
        "replica_hours": run.replica_seconds / 3600,
        "over_ideal": run.replica_seconds / run.ideal_seconds if run.ideal_seconds else 0.0,
        "most_replicas": run.most_replicas,
        "moves": sum(session.moves for session in run.sessions),
        "moved_bytes": run.moved_bytes,
        "longest_stop_s": max(session.stopped_s for session in run.sessions),
    }
