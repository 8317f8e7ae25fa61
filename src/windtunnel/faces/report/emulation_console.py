"""What is printed after a script ran as one real rank among virtual peers: plain lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import quantiles
from typing import Any

from windtunnel.real.emulate.run import Emulation, Outcome
from windtunnel.real.emulate.timeline import size_text
from windtunnel.units import format_many, format_time


def report_lines(
    emulation: Emulation, outcomes: Outcome | Mapping[int, Outcome], predicted_s: float | None = None
) -> Iterator[str]:
    """The answer, top line first; of several real ranks steps and memory one after another, what they share once."""
    size, several = emulation.launch.world_size, isinstance(outcomes, Mapping)
    own = outcomes if isinstance(outcomes, Mapping) else {emulation.rank: outcomes}
    facts, peers = own[emulation.rank].facts, size - len(own)
    others = f"{format_many(peers, 'peer')} virtual" if peers else "nobody virtual"
    who = f"ranks {', '.join(map(str, own))}" if several else f"rank {emulation.rank}"
    apart = ", each in a process of its own" if several else ""
    yield f"{who} of {size:,} ran for real{apart}, {others}, on {emulation.cluster}"
    for rank, outcome in own.items():
        if several:
            yield f"rank {rank}"
        lines = (*_steps(emulation, outcome, None if several else predicted_s), *_memory(outcome.facts))
        yield from (f"{'  ' * several}{line}" for line in lines)
    if several and predicted_s is not None:
        yield f"predicted   {format_time(predicted_s)} on {emulation.cluster} (the real ranks run on this machine)"
    yield from _technique(facts)
    yield from _faked(emulation, facts)
    missing = facts.get("without_program") if several else None
    if missing:
        more = "" if emulation.captured is not None else ", or give --captured FOLDER"
        yield (
            f"note: no real rank is where {missing:,} virtual ones are in the groups that carry messages: they are"
            f" taken to compute what the first real rank does; name more --ranks{more}"
        )
    for text in dict.fromkeys(text for outcome in own.values() for text in outcome.facts.get("notes") or ()):
        yield f"note: {text}"


def _technique(facts: Mapping[str, Any]) -> Iterator[str]:
    technique = facts.get("technique")
    if technique is not None:
        parameters = ", ".join(f"{key}={value}" for key, value in technique["parameters"].items() if value is not None)
        share = (
            f"; {technique['share_sent']:.1%} of the gradients' elements were sent" if "share_sent" in technique else ""
        )
        yield f"technique   {technique['name']} ({parameters}) on {technique['modules']} DistributedDataParallel{share}"


def _steps(emulation: Emulation, outcome: Outcome, predicted_s: float | None) -> Iterator[str]:
    facts, step = outcome.facts, outcome.step_s
    if step is None:
        yield "step        none seen: no optimizer of torch.optim was stepped twice, so nothing is said about times"
        return
    steps = outcome.settled_steps_s
    spread = ""
    if len(steps) >= 4:
        tenths = quantiles(steps, n=10)
        spread = f", p10 {format_time(tenths[0])}, p90 {format_time(tenths[-1])}"
    yield f"step        {format_time(step)} median of {len(steps)} of the real rank{spread}"
    blocked = list(facts.get("blocked_s") or ())[-len(steps) :]
    if blocked:
        share = sum(blocked) / max(sum((facts.get("step_s") or [0.0])[-len(blocked) :]), 1e-12)
        yield f"waiting     {share:.1%} of it, for communications with peers"
    behind = facts.get("behind_s", 0.0) / max(1, facts.get("steps", 1))
    if behind > 0.01 * step:
        yield f"emulating   took {format_time(behind)} a step more: the script's clock shows it, these figures do not"
    replayed = facts.get("replayed_step_s")
    if replayed:
        off = f"{replayed / step - 1:+.1%}"
        yield f"replayed    {format_time(replayed)} by the whole job, all ranks virtual, as fast as measured ({off})"
    if predicted_s is not None:
        yield f"predicted   {format_time(predicted_s)} on {emulation.cluster} (the real rank runs on this machine)"
    since, movement = facts.get("settled_at"), facts.get("movement")
    if since is not None:
        yield f"settled     arrivals of peers hold since step {since} (they last moved by {movement:.2%} of the step)"
    elif movement is not None:
        yield f"settled     not yet: arrivals of peers last moved by {movement:.2%} of the step; run more steps"
    else:
        yield "settled     not yet: too few steps; peers came when the real rank came"


def _memory(facts: Mapping[str, Any]) -> Iterator[str]:
    memory = facts.get("memory")
    if not memory:
        return
    reserved = f", {size_text(memory['reserved_bytes'])} reserved" if memory["reserved_bytes"] else ""
    at = f", at {memory['op']}" if memory["op"] else ""
    place = f" ({memory['place']})" if memory["place"] else ""
    yield f"peak memory {size_text(memory['allocated_bytes'])} allocated{reserved}{at}{place}"
    for name, size in sorted(memory["categories"].items(), key=lambda item: -item[1]):
        yield f"            {size_text(size):>8} {name}"


def _faked(emulation: Emulation, facts: Mapping[str, Any]) -> Iterator[str]:
    kinds, control = facts.get("kinds") or {}, facts.get("control") or {}
    if not kinds and not control:
        yield "faked       nothing: the script communicated with nobody"
        return
    traffic = ", ".join(f"{count:,} {kind} ({size_text(moved)})" for kind, (count, moved) in kinds.items())
    calls = ", ".join(f"{count:,} {kind}" for kind, count in control.items())
    aside = f"of objects and small tensors of the host: {calls}; these take no time here" if calls else ""
    for number, text in enumerate(filter(None, (traffic, aside))):
        yield f"{'' if number else 'faked':<12}{text}"
    what = {"like-me": "peers hold what this rank holds; received messages are noise", "noise": "noise"}[emulation.data]
    if emulation.ranks:
        what = "real ranks truly exchange theirs, and each peer holds what one of them holds"
    if emulation.tape is not None and emulation.tape[0] == "replay":
        what = f"from {emulation.tape[1]}"
    yield f"            data: {what}; times: their members' arrivals, priced on {emulation.cluster}"
    if facts.get("unplanned"):
        share = facts["unplanned"] / max(1, facts["unplanned"] + facts.get("planned", 0))
        count = facts["unplanned"]
        many = format_many(count, "communication")
        unlike = f"{many} ({share:.1%}) {'was' if count == 1 else 'were'} of steps unlike the others"
        yield f"            {unlike}: peers came when the real rank came"
    if emulation.slow:
        worst = max(emulation.slow, key=lambda rank: emulation.slow[rank])
        others = f", the slowest of {len(emulation.slow):,}" if len(emulation.slow) > 1 else ""
        yield f"            rank {worst} slowed by {emulation.slow[worst]:g}{others}"
    if emulation.peer_times:
        yield f"            computing of other classes: as measured, {', '.join(map(str, emulation.peer_times))}"
    if "recv" in kinds and emulation.captured is None and not emulation.ranks:
        yield "            messages came when asked for: other stages' programs are not known; give --captured FOLDER"
