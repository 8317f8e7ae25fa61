"""`run`: what is asked as an emulation, and what came of it as a document."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from windtunnel.errors import LayoutError, SpecError, UserError
from windtunnel.files.write import write_atomically
from windtunnel.physics.hardware import Cluster, parse_cluster
from windtunnel.questions.asked.capture import TAPES, Run
from windtunnel.questions.header import Answer
from windtunnel.real.capture.arguments import Launch, missing, parse_launch, parse_ranks
from windtunnel.real.emulate.run import Emulation, Outcome, emulate_ranks, slow_ranks


@dataclass(frozen=True, slots=True)
class Emulated(Answer):
    """What came of each real rank: of all, or of the first that failed."""

    asked: Emulation
    outcomes: Mapping[int, Outcome]
    predicted_step_s: float | None = None

    @property
    def failed(self) -> tuple[int, Outcome] | None:
        """The rank that failed, and what came of it."""
        return next(((rank, outcome) for rank, outcome in self.outcomes.items() if outcome.status != "ok"), None)

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        of_rank = {rank: _document(rank, outcome) for rank, outcome in self.outcomes.items()}
        shared = {
            "world_size": self.asked.launch.world_size,
            "cluster": self.asked.cluster,
            "predicted_step_s": self.predicted_step_s,
        }
        if not self.asked.ranks:
            return {**of_rank[self.asked.rank], **shared}
        steps = [outcome.step_s for outcome in self.outcomes.values() if outcome.step_s is not None]
        ranks = {str(rank): entry for rank, entry in of_rank.items()}
        return {"ranks": ranks, **shared, "median_step_s": max(steps, default=None)}

    def write_times(self, path: Path) -> list[Path]:
        """Write what the first rank computed, or each where the name has `{rank}`. Raises UserError."""
        ranks = self.outcomes if "{rank}" in str(path) else [self.asked.rank]
        return [_write_times(self.outcomes[rank], Path(str(path).replace("{rank}", str(rank)))) for rank in ranks]

    def write_trace(self, path: Path) -> None:
        """Write the last step as a timeline; virtual peers are drawn as the first real rank's replay had them."""
        from windtunnel.files.trace import trace_bytes
        from windtunnel.real.emulate.timeline import from_first

        real = ", ".join(map(str, self.outcomes))
        emulation = self.asked
        title = f"{emulation.launch.line}, rank {real} of {emulation.launch.world_size} real, on {emulation.cluster}"
        events = [
            event
            for rank, outcome in self.outcomes.items()
            for event in outcome.facts.get("events") or ()
            if rank == emulation.rank or event.get("pid") == rank
        ]
        write_atomically(path, trace_bytes(title, from_first(events), {"cluster": emulation.cluster}))


def answer(question: Run) -> Emulated:
    """Run the script. Raises UserError; a script that fails is an answer."""
    return emulated(emulation_of(question))


def emulated(emulation: Emulation) -> Emulated:
    """What came of it, and the step time of the captured job on the cluster."""
    result = Emulated(emulation, emulate_ranks(emulation))
    if emulation.captured is None or result.failed is not None:
        return result
    from windtunnel.studies.programs.predict import predict_captured

    words = [f"gpu={rank}:{factor:g}" for rank, factor in emulation.slow.items()]
    predicted = predict_captured(emulation.captured, emulation.cluster, slow=words).step_time_s
    return Emulated(emulation, result.outcomes, predicted)


def emulation_of(question: Run, *, aside: bool = False) -> Emulation:
    """What is asked, checked. `aside`: what the script prints goes to stderr. Raises UserError."""
    if question.tape in TAPES and question.launch:  # `--tape record FILE`
        tape_and_file = f"{question.tape}:{question.launch[0]}"
        question = replace(question, tape=tape_and_file, launch=question.launch[1:])
    tape, words = question.tape_of, question.launch
    if tape is not None and tape[0] == "record":
        return _recording(question, tape[1], aside=aside)
    if question.cluster is None:
        raise missing("--cluster", "name the cluster to emulate, e.g. h100-sxm:1024 or my-device.yaml:2", words)
    cluster = parse_cluster(question.cluster)
    line = parse_launch(words, world_size=question.world_size or cluster.n_gpus, local_world_size=cluster.gpus_per_node)
    if line.world_size != cluster.n_gpus:
        remedy = "name a cluster of as many GPUs as there are ranks"
        raise LayoutError(
            f"{line.world_size} ranks do not fill --cluster {question.cluster} ({cluster.n_gpus} GPUs)", remedy
        )
    several = parse_ranks(question.ranks)
    if several and question.rank is not None:
        raise SpecError("--rank", question.rank, "give --rank, or --ranks for several")
    chosen = several[0] if several else _rank(question.rank, line)
    return Emulation(
        launch=line,
        rank=chosen,
        cluster=question.cluster,
        slow=slow_ranks(question.slow, cluster, question.seed, several or (chosen,)),
        jitter=question.jitter == "own",
        seed=question.seed,
        data=question.data,
        tape=tape,
        captured=None if question.captured is None else Path(question.captured),
        peer_times=tuple(map(Path, question.peer_times)),
        memory=question.memory,
        aside=aside,
        ranks=several,
        techniques=question.technique,
    )


def doubts(cluster: str) -> list[str]:
    """That what prices communications is not there, is old, or was disturbed."""
    file, machine = cluster.rpartition(":")[0] or cluster, parse_cluster(cluster)
    texts = [] if machine.calibration is None else _doubts(file, machine)
    return [f"note: {file} {text}" for text in texts]


def _doubts(file: str, cluster: Cluster) -> list[str]:
    assert cluster.calibration is not None
    texts = []
    if not cluster.calibration.collectives and cluster.n_gpus > 1:
        texts.append(
            "holds no collectives: their times rest on links that were assumed; to measure them:"
            f" windtunnel calibrate collectives --out {file}"
        )
    old = cluster.calibration.doubts(date.today())
    if old:
        texts.append(f"may be off: {'; '.join(old)}; to measure again: windtunnel calibrate device --out {file}")
    return texts


def _recording(question: Run, path: str, *, aside: bool) -> Emulation:
    """A rank of a real job, as torchrun started it."""
    here = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    if not all(value.isdigit() for value in here.values()):
        raise UserError(
            "--tape record keeps what real peers say, and torchrun did not start this process; run it on every rank, "
            "e.g. torchrun --nproc-per-node 2 -m windtunnel run --tape record:tape-{rank}.bin train.py"
        )
    size, per_node, rank = int(here["WORLD_SIZE"]), int(here["LOCAL_WORLD_SIZE"]), int(here["RANK"])
    line = parse_launch(question.launch, world_size=size, local_world_size=per_node)
    tape = ("record", path.replace("{rank}", str(rank)))
    times = tuple(map(Path, question.peer_times))
    return Emulation(
        line, rank, "", tape=tape, memory=False, aside=aside, peer_times=times, techniques=question.technique
    )


def _rank(number: int | None, line: Launch) -> int:
    if number is not None:
        return number
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdigit() and int(text) < line.world_size else 0


def _document(rank: int, outcome: Outcome) -> dict[str, object]:
    facts = {key: value for key, value in outcome.facts.items() if key not in ("events", "times")}
    return {**facts, "rank": rank, "median_step_s": outcome.step_s}


def _write_times(outcome: Outcome, path: Path) -> Path:
    from json import dumps

    times = outcome.facts.get("times")
    if times is None:
        raise UserError("--rows: too few steps were alike for a typical one; let the script make ten or more")
    write_atomically(path, dumps(times).encode())
    return path
