"""The actions of a schedule as ops: one per pass of a model piece, and what carries its output to the next stage.

Which ops there are and what waits for what is the same for any length of the sequences; how long passes and transfers
take is filled in last (`with_tokens`).

A pipeline transfer sits on the *receiver's* stream, where waiting for it is felt; a transfer that the framework does
not overlap also holds its sender's compute stream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.cost.price import FREE, nanoseconds
from windtunnel.physics.cost.training import MATH
from windtunnel.physics.graph import OpKind
from windtunnel.physics.model.mixers import streams_of
from windtunnel.physics.model.operations import Transfer
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.pass_builder import Segment
from windtunnel.studies.training.lowering.passes import PARTS, nic_parts
from windtunnel.studies.training.lowering.step import COMPUTE, PP_BACKWARD, PP_FORWARD, STREAMS, LoweredStep, Tokens
from windtunnel.studies.training.lowering.step_builder import StepBuilder
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import Kind


@dataclass(frozen=True, eq=False)
class Actions:
    """Ops of each action, int64[actions]."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    arrival: NDArray[np.int64]  # op after which the action's output is where it is needed
    tokens: Tokens


@dataclass(frozen=True, eq=False)
class _Sends:
    """Of each action, whether another rank needs its output; which rank, and for which action."""

    sent: NDArray[np.bool_]
    receiver: NDArray[np.int64]
    needed: NDArray[np.int64]
    far: NDArray[np.int64]  # whether across scale-up domains
    category: NDArray[np.int64]


def add_actions(build: StepBuilder, segment_of: NDArray[np.int32], parts: NDArray[np.int64]) -> Actions:
    """The compute ops, each action in `parts`, and behind each the transfer that its framework does not overlap.

    All of them take no time until `with_tokens` fills it in.
    """
    schedule, n = build.schedule, len(build.schedule.rank)
    sends = _sends(build)
    blocking = not build.plan.overlap_p2p
    width = parts + (sends.sent if blocking else 0)
    base = np.zeros(n + 1, np.int64)
    np.cumsum(width, out=base[1:])
    total = int(base[-1])
    action = np.repeat(np.arange(n), width)
    place = np.arange(total) - base[action]
    segment = segment_of[schedule.stage_of, schedule.kind][action].astype(np.int64)
    split = parts[action]
    is_send = place >= split
    columns: dict[str, object] = {
        "kind": np.where(is_send, OpKind.SEND, OpKind.COMPUTE),
        "stream": schedule.rank[action].astype(np.int64) * len(STREAMS) + COMPUTE,
        "label": np.where(is_send, build.label("send"), segment),
        "category": np.where(is_send, sends.category[action], segment),
        "interference": np.where(is_send, 0, MATH),
        "sender": np.where(is_send, schedule.rank[action], -1),
        "receiver": np.where(is_send, sends.receiver[action], -1),
    }
    start = build.ops.add(total, columns)
    first = base[:-1] + start
    last = first + parts - 1
    arrival, received = last.copy(), np.zeros(0, np.int64)
    if blocking:
        arrival[sends.sent] = last[sends.sent] + 1
    elif sends.sent.any():
        received, arrivals = _receives(build, sends, last)
        arrival[received] = arrivals
    counts = {}
    for category in np.unique(sends.category[sends.sent]):
        key = build.categories[category].replace("exposed", "send_recv")
        counts[key] = int((sends.category == category)[sends.sent].sum())
    receives = slice(build.ops.n - len(received), build.ops.n)
    reach = tuple(apart for apart in (False, True) if (sends.sent & (sends.far == apart)).any())
    far, ops = np.where(is_send, sends.far[action], -1), slice(start, start + total)
    tokens = Tokens(ops, segment, place, split, far, receives, sends.far[received], counts, reach)
    return Actions(first, last, arrival, tokens)


def with_tokens(step: LoweredStep, tokens: Tokens, segments: tuple[Segment, ...], pricer: Pricer) -> LoweredStep:
    """A step whose actions take no time yet, with these passes."""
    duration, nic, moved = step.duration_ns.copy(), step.nic_share.copy(), step.graph.bytes.copy()
    hops = np.zeros(2, np.int64)
    for far in tokens.reach:
        hops[int(far)], _ = hop(pricer, far=far)
    whole = np.array([segment.duration_ns for segment in segments], np.int64)[tokens.segment]
    passed = whole * (tokens.part + 1) // tokens.parts - whole * tokens.part // tokens.parts
    is_send, size = tokens.far >= 0, hop_bytes(pricer.layout)
    duration[tokens.ops] = np.where(is_send, hops[tokens.far], passed)
    nic[tokens.ops] = np.where(is_send, 0, nic_parts(segments)[tokens.segment]) / PARTS
    duration[tokens.receives], moved[tokens.receives] = hops[tokens.received_far], size
    stages = step.schedule.stages
    sent = {key: float(count) * size / stages for key, count in tokens.sends.items()}
    return replace(
        step,
        graph=replace(step.graph, bytes=moved),
        duration_ns=duration,
        segments=segments,
        traffic_bytes=step.traffic_bytes | sent,
        nic_share=nic,
    )


def connect(build: StepBuilder, actions: Actions) -> None:
    """Actions wait for what other ranks send. What a rank needs of itself comes earlier in its own stream."""
    consumer, needs = build.schedule.crossing
    build.ops.depend(actions.first[consumer], actions.arrival[needs])


def _sends(build: StepBuilder) -> _Sends:
    """Which actions' outputs another rank needs, and what sending them costs."""
    schedule = build.schedule
    consumer, needs = schedule.crossing
    sent = np.zeros(len(schedule.rank), bool)
    receiver = np.zeros(len(schedule.rank), np.int64)
    needed = np.zeros(len(schedule.rank), np.int64)
    sent[needs] = True
    receiver[needs] = schedule.rank[consumer]
    needed[needs] = consumer
    return _Sends(sent, receiver, needed, *_hops(build, sent, receiver))


def hop_bytes(layout: Layout) -> float:
    """Of what one stage sends the next behind a pass, on one GPU."""
    plan = layout.plan
    cut = plan.sequence_parallel or layout.habits.scatters_sends
    tokens = layout.tokens_per_rank / (plan.tp if cut else 1)
    return tokens * layout.model.hidden_size * streams_of(layout.model) * (4 if plan.precision == "fp32" else 2)


def hop(pricer: Pricer, *, far: bool) -> tuple[int, str]:
    """How long sending that takes, in ns, inside a scale-up domain or across, and its category."""
    layout, size = pricer.layout, hop_bytes(pricer.layout)
    again = FREE  # what was cut for the way is put together where it arrives
    if layout.habits.scatters_sends and layout.plan.tp > 1 and not layout.plan.sequence_parallel:
        again, _ = pricer.links.transfer(Transfer("all_gather", "tp", size * layout.plan.tp))
    price, tier = pricer.links.hop(size, far=far)
    return nanoseconds(price.seconds + again.seconds), f"exposed pp ({tier.replace('_', '-')})"


def _hops(
    build: StepBuilder, sent: NDArray[np.bool_], receiver: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """How far the transfer behind each action goes, and its category: neighbours may share a scale-up domain or not."""
    schedule, n = build.schedule, len(sent)
    categories = np.zeros(n, np.int64)
    if not sent.any():
        return categories, categories
    gpus = build.layout.cluster.n_gpus // schedule.stages
    domain = build.layout.cluster.used_per_domain
    far = _apart(schedule.rank.astype(np.int64), receiver, gpus, domain)
    for apart in (False, True):
        there = sent & (far == apart)
        if there.any():
            categories[there] = build.category(hop(build.pricer, far=apart)[1])
    return far.astype(np.int64), categories


def _apart(
    rank: NDArray[np.int64], receiver: NDArray[np.int64], gpus: int, domain: int
) -> NDArray[np.bool_]:  # fmt: skip
    """Whether any GPU of a stage has its counterpart in another scale-up domain: all wait for the slowest pair."""
    # A pair's GPUs lie in one domain where no border is passed from the lower stage's first to the higher one's last.
    lower, higher = np.minimum(rank, receiver) * gpus, np.maximum(rank, receiver) * gpus
    passed: NDArray[np.bool_] = lower // domain != (higher + gpus - 1) // domain
    return np.asarray(passed & (rank != receiver))


def _receives(
    build: StepBuilder, sends: _Sends, action_last: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """Transfers that overlap, on their receivers' streams: the actions that send, and the op of each."""
    schedule = build.schedule
    sent = np.flatnonzero(sends.sent)
    # Ops of a stream run in array order, so arrivals are listed in the order in which the receiver needs them.
    sent = sent[np.argsort(sends.needed[sent], kind="stable")]
    forward = schedule.kind[sent] == Kind.FORWARD
    columns = {
        "kind": OpKind.SEND,
        "stream": sends.receiver[sent] * len(STREAMS) + np.where(forward, PP_FORWARD, PP_BACKWARD),
        "label": build.label("receive"),
        "category": sends.category[sent],
        "sender": schedule.rank[sent],
        "receiver": sends.receiver[sent],
    }
    at = build.ops.add(len(sent), columns)
    arrivals = np.arange(at, at + len(sent))
    build.ops.depend(arrivals, action_last[sent])
    return sent, arrivals
