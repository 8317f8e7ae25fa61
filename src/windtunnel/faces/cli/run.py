"""`windtunnel run [torchrun's options] train.py ...`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from windtunnel.errors import LayoutError, SpecError, UserError
from windtunnel.faces.cli.output import note, print_answer, stdout

if TYPE_CHECKING:
    from windtunnel.physics.hardware import Cluster
    from windtunnel.real.capture.arguments import Launch
    from windtunnel.real.emulate.run import Emulation, Outcome

_TAPE_WORDS = ("record", "replay")


def run(
    *launch: Annotated[str, Parameter(help="torchrun's options, then the script (or -m MODULE) and its arguments.")],
    cluster: Annotated[str | None, Parameter(help="The cluster to emulate, e.g. h100-sxm:1024, or a file.")] = None,
    world_size: Annotated[int | None, Parameter(help="Ranks; the cluster's by default.")] = None,
    rank: Annotated[int | None, Parameter(help="The rank that is real (0, or RANK of the environment).")] = None,
    ranks: Annotated[
        str | None, Parameter(help="Several real ranks, e.g. 0,8,16: a process each, which truly communicate.")
    ] = None,
    slow: Annotated[
        tuple[str, ...],
        Parameter(negative="", consume_multiple=False, help="A slow peer: gpu=3:1.2 or random=1%:1.2; repeatable."),
    ] = (),
    jitter: Annotated[
        Literal["none", "own"], Parameter(help="own: peers take steps of the real rank drawn at random (none).")
    ] = "none",
    seed: Annotated[int, Parameter(help="Seed of what is drawn at random (0).")] = 0,
    data: Annotated[
        Literal["like-me", "noise"], Parameter(help="Peers' tensors: what this rank's hold, or noise (like-me).")
    ] = "like-me",
    tape: Annotated[
        str | None, Parameter(help="record:FILE keeps what real peers say, replay:FILE answers from it.")
    ] = None,
    captured: Annotated[Path | None, Parameter(help="Captured folder: what ranks unlike the real one do.")] = None,
    peer_times: Annotated[
        tuple[Path, ...],
        Parameter(
            negative="",
            consume_multiple=False,
            help="Times of a rank unlike the real one, as --write-times kept them; repeatable.",
        ),
    ] = (),
    write_times: Annotated[
        Path | None, Parameter(help="Keep what this rank computed, for runs of ranks unlike it (--peer-times).")
    ] = None,
    technique: Annotated[
        tuple[str, ...],
        Parameter(
            negative="",
            consume_multiple=False,
            help="Put a technique's real twin into the script: sparse_gradients or collective_partitioning, with"
            " :key=value,... after it.",
        ),
    ] = (),
    trace: Annotated[Path | None, Parameter(help="Write the last step as a timeline for Perfetto here.")] = None,
    no_memory: Annotated[bool, Parameter(negative="", help="Do not profile two steps for the peak of memory.")] = False,
    json: Annotated[
        bool, Parameter(negative="", help="Print what was found as JSON; the script prints to stderr.")
    ] = False,
) -> int:
    """Run a training script as one real rank of a large job, or as a few; all other ranks are virtual.

    A real rank has real tensors, a real data loader and optimizer; each communication takes the time that it would
    with all its members, and leaves data of the right size and scale. The launch line changes in its first word:
    windtunnel run --world-size 1024 --rank 0 --cluster h100-sxm:1024 train.py --config x.
    """
    from windtunnel.faces.report.emulation_console import report_lines, report_lines_of_several
    from windtunnel.real.emulate.run import emulate_ranks

    asked = _asked(launch, cluster, world_size, rank, ranks, slow, jitter, seed, data, tape, captured, not no_memory)
    if peer_times and captured is None:
        raise UserError("--peer-times says what ranks unlike the real one compute: name their job too, by --captured")
    asked = replace(asked, aside=json, peer_times=peer_times, techniques=technique)
    outcomes = emulate_ranks(asked)
    for rank_, one in outcomes.items():
        if one.status != "ok":
            return _failed(asked, one, rank_)
    outcome = outcomes[asked.rank]
    predicted = _predicted(asked)
    if json:
        of_rank = {number: _document(number, one) for number, one in outcomes.items()}
        shared = {"world_size": asked.launch.world_size, "cluster": asked.cluster, "predicted_step_s": predicted}
        if asked.ranks:
            steps = [one.step_s for one in outcomes.values() if one.step_s is not None]
            slowest = {"median_step_s": max(steps, default=None)}
            own = {"ranks": {str(number): one for number, one in of_rank.items()}, **shared, **slowest}
            print_answer("run", own)
        else:
            print_answer("run", {**of_rank[asked.rank], **shared})
    elif asked.tape is not None and asked.tape[0] == "record":
        kept = outcome.facts["tape"]
        note(f"wrote {asked.tape[1]}: {kept['communications']:,} communications, {kept['bytes']:,} bytes")
    else:
        console = stdout()
        lines = report_lines_of_several(asked, outcomes, predicted) if asked.ranks else report_lines(
            asked, outcome, predicted)  # fmt: skip
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)
    if write_times is not None:
        for number, one in outcomes.items() if "{rank}" in str(write_times) else [(asked.rank, outcome)]:
            _write_times(one, Path(str(write_times).replace("{rank}", str(number))))
    if trace is not None:
        _write_trace(asked, outcomes, trace)
    return 0


def _document(rank: int, outcome: Outcome) -> dict[str, Any]:
    facts = {key: value for key, value in outcome.facts.items() if key not in ("events", "times")}
    return {**facts, "rank": rank, "median_step_s": outcome.step_s}


def _asked(
    words: Sequence[str],
    cluster: str | None,
    world_size: int | None,
    rank: int | None,
    ranks: str | None,
    slow: tuple[str, ...],
    jitter: str,
    seed: int,
    data: Literal["like-me", "noise"],
    tape: str | None,
    captured: Path | None,
    memory: bool,
) -> Emulation:
    from windtunnel.real.emulate.run import Emulation, slow_ranks

    words = list(words)
    if tape in _TAPE_WORDS:
        if not words:
            raise SpecError("--tape", tape, "give a file too: --tape record:FILE")
        tape = f"{tape}:{words.pop(0)}"
    parted = _tape(tape)
    if parted is not None and parted[0] == "record":
        return _recording(words, parted[1])
    from windtunnel.real.capture.arguments import missing, parse_launch, parse_ranks

    if cluster is None:
        raise missing("--cluster", "name the cluster to emulate, e.g. h100-sxm:1024 or my-device.yaml:2", words)
    from windtunnel.physics.hardware import parse_cluster

    found = parse_cluster(cluster)
    line = parse_launch(words, world_size=world_size or found.n_gpus, local_world_size=found.gpus_per_node)
    if line.world_size != found.n_gpus:
        remedy = "name a cluster of as many GPUs as there are ranks"
        raise LayoutError(f"{line.world_size} ranks do not fill --cluster {cluster} ({found.n_gpus} GPUs)", remedy)
    several = parse_ranks(ranks)
    if several and rank is not None:
        raise SpecError("--rank", rank, "give --rank, or --ranks for several")
    chosen = several[0] if several else _rank(rank, line)
    slowed = slow_ranks(slow, found, seed, several or (chosen,))
    _say_doubts(cluster.rpartition(":")[0] or cluster, found)
    made = Emulation(line, chosen, cluster, slowed, jitter == "own", seed, data, parted, captured, memory=memory)
    return replace(made, ranks=several)


def _say_doubts(file: str, found: Cluster) -> None:
    """That what prices communications is not there, is old, or was disturbed."""
    from datetime import date

    if found.calibration is None:
        return
    if not found.calibration.collectives and found.n_gpus > 1:
        note(f"note: {file} holds no collectives: their times rest on links that were assumed; to measure them:"
             f" windtunnel calibrate --collectives --out {file}")  # fmt: skip
    doubts = found.calibration.doubts(date.today())
    if doubts:
        note(f"note: {file} may be off: {'; '.join(doubts)}; to measure again: windtunnel calibrate --out {file}")


def _recording(words: Sequence[str], path: str) -> Emulation:
    """A rank of a real job, as torchrun started it."""
    from windtunnel.real.capture.arguments import parse_launch
    from windtunnel.real.emulate.run import Emulation

    here = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    if not all(value.isdigit() for value in here.values()):
        raise UserError(
            "--tape record keeps what real peers say, and torchrun did not start this process; run it on every rank, "
            "e.g. torchrun --nproc-per-node 2 -m windtunnel run --tape record:tape-{rank}.bin train.py"
        )
    line = parse_launch(words, world_size=int(here["WORLD_SIZE"]), local_world_size=int(here["LOCAL_WORLD_SIZE"]))
    rank = int(here["RANK"])
    return Emulation(line, rank, "", tape=("record", path.replace("{rank}", str(rank))), memory=False)


def _tape(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    word, colon, path = text.partition(":")
    if word not in _TAPE_WORDS or not colon or not path:
        raise SpecError("--tape", text, "give record:FILE or replay:FILE")
    return word, path


def _rank(given: int | None, line: Launch) -> int:
    if given is not None:
        return given
    said = os.environ.get("RANK", "0")
    return int(said) if said.isdigit() and int(said) < line.world_size else 0


def _predicted(asked: Emulation) -> float | None:
    """Step time of the captured job on the cluster."""
    if asked.captured is None:
        return None
    from windtunnel.studies.programs.predict import predict_captured

    words = [f"gpu={rank}:{factor:g}" for rank, factor in asked.slow.items()]
    return predict_captured(asked.captured, asked.cluster, slow=words).step_time_s


def _failed(asked: Emulation, outcome: Outcome, rank: int) -> int:
    """Say what ended the script; its own status, or 1."""
    if asked.ranks:
        note(f"rank {rank} ended first; the other real ranks were ended with it")
    if outcome.details:
        note(outcome.details.rstrip())
    if outcome.status == "exit":
        return outcome.exit_status
    at = f"{outcome.place}: " if outcome.place else ""
    note(f"windtunnel: error: {at}{outcome.message}")
    if outcome.status == "out of memory":
        note(f"out of memory at {outcome.facts.get('op') or 'an unknown op'}")
        memory = outcome.facts.get("memory")
        if memory:
            note(f"peak until then: {memory['allocated_bytes']:,} bytes allocated")
    return {"refused": 2, "interrupted": 130}.get(outcome.status, 1)


def _write_times(outcome: Outcome, path: Path) -> None:
    from json import dumps

    from windtunnel.files.write import write_atomically

    times = outcome.facts.get("times")
    if times is None:
        raise UserError("--write-times: too few steps were alike for a typical one; let the script make ten or more")
    write_atomically(path, dumps(times).encode())
    note(f"wrote {path}")


def _write_trace(asked: Emulation, outcomes: Mapping[int, Outcome], path: Path) -> None:
    from windtunnel.files.write import write_atomically
    from windtunnel.real.emulate.timeline import trace_bytes

    real = ", ".join(map(str, outcomes))
    title = f"{asked.launch.line}, rank {real} of {asked.launch.world_size} real, on {asked.cluster}"
    # Virtual peers are drawn as the first real rank's replay had them.
    events = [
        event
        for rank, outcome in outcomes.items()
        for event in outcome.facts.get("events") or ()
        if rank == asked.rank or event.get("pid") == rank
    ]
    write_atomically(path, trace_bytes(title, events, {"cluster": asked.cluster}))
    note(f"wrote {path}")
