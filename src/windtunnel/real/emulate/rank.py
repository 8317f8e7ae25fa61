"""The real rank: a process of its own that runs the script as one rank of a virtual world, and says what came of it.

`python -m windtunnel.real.emulate.rank FOLDER [RANK]`, with what to run in FOLDER/task.json; `run.py` starts it and
reads FOLDER/outcome_RANK.json. Imports torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.errors import UserError
from windtunnel.process import die_with_parent
from windtunnel.real.capture.processes.file_mailbox import write_whole
from windtunnel.real.emulate.journal import Journal, Task
from windtunnel.real.emulate.outcome import error_document, facts_of

if TYPE_CHECKING:
    from windtunnel.physics.hardware import Cluster
    from windtunnel.real.capture.arguments import Launch
    from windtunnel.real.capture.virtual_world.peer_data import PeerPolicy
    from windtunnel.real.emulate.clock.compute_time import ComputeTime
    from windtunnel.real.emulate.clock.script_clock import ScriptClock
    from windtunnel.real.emulate.clock.stream_delay import StreamDelay
    from windtunnel.real.emulate.conductor import Conductor, OtherClasses
    from windtunnel.real.emulate.observe import ObservedStep
    from windtunnel.real.emulate.peers.cohort import Watched
    from windtunnel.real.emulate.several.company import Company
    from windtunnel.real.emulate.several.data import RealData
    from windtunnel.studies.programs.program import Op


def main() -> None:
    """Run the task of the folder named on the command line."""
    folder = Path(sys.argv[1])
    task: Task = json.loads((folder / "task.json").read_text())
    if len(sys.argv) > 2:  # one of several real ranks, each with the others' times of its own class
        task["rank"] = int(sys.argv[2])
        task["tape"] = [text.replace("{rank}", sys.argv[2]) for text in task["tape"]]
    task["folder"] = str(folder)
    die_with_parent(task["parent"])
    journal = Journal(folder, task)
    outcome: dict[str, object] = {}
    status = 0
    try:
        with _prepared(task):
            if task["tape"][:1] == ["record"]:
                outcome = _recorded(task)
            else:
                _emulated(task, journal)
        outcome["status"] = "ok"
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        outcome |= {"status": "ok" if status == 0 else "exit", "exit": status}
    except KeyboardInterrupt:
        status = 130
        outcome |= {"status": "interrupted"}
    except BaseException as error:  # whatever a script can raise
        status = 2 if isinstance(error, UserError) else 1
        outcome |= error_document(error)
    outcome |= facts_of(journal)
    write_whole(folder / f"outcome_{task['rank']}.json", json.dumps(outcome).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads that the script left do not keep it


def _emulated(task: Task, journal: Journal) -> None:
    import torch

    from windtunnel.real.capture.processes.file_mailbox import FileMailbox
    from windtunnel.real.capture.replacements import Replacements
    from windtunnel.real.capture.torch_private.emulate import checkpoints_of_one_rank
    from windtunnel.real.capture.virtual_world.world import World
    from windtunnel.real.emulate.clock.compute_time import ComputeTime
    from windtunnel.real.emulate.memory import watch_profilers

    launch = launch_of(task)
    several = len(task["ranks"]) > 1
    on_gpu = torch.cuda.is_available()
    own = journal.own = ComputeTime()
    listener, policy, undo = _on_gpu(task, launch, journal) if on_gpu else _on_cpu(task, launch, journal, own)
    world = World(
        task["rank"],
        launch.world_size,
        local_world_size=launch.local_world_size,
        peers=policy,
        listener=listener,
        mailbox=FileMailbox(journal.folder, task["rank"]),
        devices=("cpu", "cuda") if on_gpu else ("cpu",),
        around=None if on_gpu else own.around,
        beside=[rank for rank in task["ranks"] if rank != task["rank"]],
        real_peers=_real_peers(task, journal) if several and not task["tape"] else None,
    )
    replaced = Replacements()
    try:
        with world:
            checkpoints_of_one_rank(replaced, journal.notes.append)
            watch_profilers(replaced, journal.script_profiles)
            with _technique(task, launch, journal):
                _run(launch)
            if several and journal.conductor is not None and journal.conductor.company is not None:
                journal.conductor.company.leave()
    finally:
        replaced.undo()
        undo()
        journal.stop_watch()
        journal.notes += world.notes


@contextlib.contextmanager
def _technique(task: Task, launch: Launch, journal: Journal) -> Iterator[None]:
    """The script runs with the technique that was asked for, if any."""
    if not task["techniques"]:
        yield
        return
    from windtunnel.real.emulate.ddp_technique import PARTS_ARE_MINE, applied

    with applied(task["techniques"][0], launch.local_world_size) as journal.technique:
        if journal.technique.name == "collective_partitioning":
            journal.notes.append(PARTS_ARE_MINE)
        yield


def _real_peers(task: Task, journal: Journal) -> RealData:
    """What the real ranks truly send each other."""
    from windtunnel.real.capture.virtual_world.peer_data import PEERS_LIKE_ME
    from windtunnel.real.emulate.peers.shards import TiedShards
    from windtunnel.real.emulate.several.data import RealData
    from windtunnel.real.emulate.several.real_groups import RealGroups

    return RealData(RealGroups(task["rank"], task["ranks"], journal.folder), TiedShards(PEERS_LIKE_ME))


def _on_cpu(
    task: Task, launch: Launch, journal: Journal, own: ComputeTime
) -> tuple[ScriptClock, PeerPolicy, Callable[[], None]]:
    from windtunnel.real.emulate.clock.script_clock import ScriptClock, optimizer_hooks

    conductor = journal.conductor = _conductor(task, launch, on_cpu=True)
    listening = ScriptClock(
        conductor,
        on_step=journal.on_step,
        learns=lambda: not journal.profiling,
        started=lambda call, ticket: journal.record_communication(call),
        own=own,
    )
    undo = optimizer_hooks(listening.optimizer, listening.end_step, journal.before_optimizer)
    return listening, _policy(task, journal), undo


def _on_gpu(task: Task, launch: Launch, journal: Journal) -> tuple[StreamDelay, PeerPolicy, Callable[[], None]]:
    """Stream-ordered. Not yet run on a GPU."""
    import torch

    from windtunnel.physics.cost.device_memory import memory_document
    from windtunnel.real.capture.replacements import Replacements
    from windtunnel.real.capture.virtual_world import work
    from windtunnel.real.emulate.clock.cuda_device import TorchCuda
    from windtunnel.real.emulate.clock.script_clock import optimizer_hooks
    from windtunnel.real.emulate.clock.stream_delay import StreamDelay
    from windtunnel.real.emulate.run import NOT_RUN_ON_GPU

    conductor = journal.conductor = _conductor(task, launch)

    def on_gpu_step(step: ObservedStep) -> Sequence[Watched]:
        journal.on_step(len(journal.step_s) + 1, step)
        return conductor.holds(step)

    device = TorchCuda(communicator_bytes=int(memory_document()["communicator_mib"]) << 20)
    holding = StreamDelay(
        *(device, conductor.seconds_of, _policy(task, journal)),
        on_step=on_gpu_step,
        started=journal.record_communication,
        filling=journal.device_peak.apart,
    )
    journal.notes.append(NOT_RUN_ON_GPU)
    hooks = optimizer_hooks(holding.optimizer, holding.end_step, journal.before_optimizer)
    futures = holding.futures_of(work.VirtualWork)
    graphs = Replacements((torch.cuda.CUDAGraph, "capture_begin", _no_graphs))

    def undo() -> None:
        graphs.undo()
        hooks()
        futures()
        device.memory.release()

    return holding, holding.policy, undo


def _no_graphs(*_: object, **__: object) -> None:
    raise UserError(
        "CUDA graphs are not supported with virtual peers: what a graph replays calls nobody, so its communications"
        " would take no time; run the script without them"
    )


def local_device(rank: int, real: Sequence[int], gpus: int) -> int:
    """The GPU of this machine that a real rank is given: they share them out by turns."""
    return sorted(real).index(rank) % max(1, gpus)


def _recorded(task: Task) -> dict[str, object]:
    import torch

    from windtunnel.real.emulate.tape.record_real import Recording
    from windtunnel.real.emulate.tape.tape import TapeWriter

    launch = launch_of(task)
    path = Path(task["tape"][1])
    facts = {"rank": task["rank"], "world_size": launch.world_size, "torch": str(torch.__version__)}
    writer = TapeWriter(path, facts)
    recording = Recording(writer, ("CPU", "CUDA") if torch.cuda.is_available() else ("CPU",))
    try:
        with recording:
            _run(launch)
    except BaseException:
        writer.discard()
        raise
    writer.close()
    unread = recording.unread()
    return {"tape": {"communications": writer.communications, "bytes": writer.bytes, "unread": unread}}


def _run(launch: Launch) -> None:
    """The script; ending itself with success is an end like any other."""
    from windtunnel.real.capture.processes.rank_process import run_script

    try:
        run_script(launch)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise


def _conductor(task: Task, launch: Launch, *, on_cpu: bool = False) -> Conductor:
    from windtunnel.physics.hardware import parse_cluster
    from windtunnel.real.emulate.conductor import Conductor
    from windtunnel.real.emulate.peers.prices import seconds_beside_on, seconds_on

    cluster = parse_cluster(task["cluster"])
    same: Sequence[int] = range(launch.world_size)
    others = None
    if captured := task["captured"]:
        same, others = _captured(captured, task, cluster)
    slow = {int(rank): float(factor) for rank, factor in task["slow"].items()}
    company = _company(task, launch, others) if len(task["ranks"]) > 1 else None
    return Conductor(
        task["rank"], launch.world_size, seconds_on(cluster), same, others, slow,
        jitter=task["jitter"], seed=task["seed"], watch=task["watch"],
        processor_s_of=seconds_beside_on(cluster) if on_cpu and _one_core(cluster) else None,
        queued_s_of=seconds_on(cluster, queued=True), company=company,
    )  # fmt: skip


def _company(task: Task, launch: Launch, others: OtherClasses | None) -> Company:
    """The other real ranks."""
    from windtunnel.real.emulate.several.company import Company
    from windtunnel.studies.programs.folder import load_job

    class_of = None
    if captured := task["captured"]:
        class_of = dict(enumerate(load_job(Path(captured)).runs.tolist()))
    return Company(Path(task["folder"]), task["rank"], task["ranks"], launch.world_size, class_of, others)


def _one_core(cluster: Cluster) -> bool:
    """Whether this is a CPU whose communications run on the one core that also computes: gloo's threads are busy."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return cluster.calibration is not None and cluster.calibration.kind == "cpu" and cores == 1


def _captured(captured: str, task: Task, cluster: Cluster) -> tuple[Sequence[int], OtherClasses | None]:
    from windtunnel.real.emulate.peers.other_classes import KERNELS, OPTIMIZER, PRODUCTS, other_classes
    from windtunnel.real.emulate.peers.peer_times import by_class
    from windtunnel.studies.programs.folder import load_job
    from windtunnel.studies.programs.lowering.pricing import ATTENTION, GEMM, op_pricer

    job = load_job(Path(captured))
    measured_programs = by_class(job, task["rank"], [Path(path) for path in task["peer_times"]])
    if len(set(job.runs.tolist())) == 1:
        return range(job.world_size), None
    pricer = op_pricer(cluster)

    def price(op: Op) -> tuple[float, int]:
        if op.kind not in ("compute", "copy"):
            return 0.0, KERNELS
        priced = pricer.price(op)
        if priced is None:
            return 0.0, KERNELS
        part = OPTIMIZER if op.phase == "optimizer" else PRODUCTS if priced.category in (GEMM, ATTENTION) else KERNELS
        return priced.price.seconds, part

    return other_classes(job, task["rank"], price, measured_programs)


def _policy(task: Task, journal: Journal) -> PeerPolicy:
    from windtunnel.real.capture.virtual_world import peer_data as peers
    from windtunnel.real.emulate.peers.shards import TiedShards

    tied = TiedShards(peers.PEERS_LIKE_ME).policy()
    policy = peers.PeerPolicy(peers.noise) if task["data"] == "noise" else tied
    if task["tape"][:1] == ["replay"]:
        from windtunnel.real.emulate.tape.tape import Tape, player

        tape = Tape(Path(task["tape"][1]))
        of_rank = (tape.facts.get("rank"), tape.facts.get("world_size"))
        if of_rank != (task["rank"], task["launch"]["world_size"]):
            raise UserError(
                f"{tape.path} was recorded on rank {of_rank[0]} of {of_rank[1]}, this is rank {task['rank']} of "
                f"{task['launch']['world_size']}; give --rank {of_rank[0]} --world-size {of_rank[1]}"
            )
        play = player(tape, journal.notes.append)
        otherwise = {kind: peers.fill_from_tape(play, fill) for kind, fill in policy.by_kind.items()}
        return peers.PeerPolicy(peers.fill_from_tape(play, policy.default), otherwise)
    return policy


def launch_of(task: Task) -> Launch:
    """The launch line of a task."""
    from windtunnel.real.capture.arguments import Launch

    launch = Launch(**task["launch"])  # whose arguments JSON has as a list
    return replace(launch, arguments=tuple(launch.arguments))


@contextlib.contextmanager
def _prepared(task: Task) -> Iterator[None]:
    if task["tape"][:1] != ["record"]:
        os.environ.update(launch_of(task).environment(task["rank"]))
    import torch  # before the clock of the script runs

    if task["tape"][:1] != ["record"] and torch.cuda.is_available():
        os.environ["LOCAL_RANK"] = str(local_device(task["rank"], task["ranks"], torch.cuda.device_count()))

    from windtunnel.real.capture.processes.write_overlay import short_place_for_sockets

    # Data-loader workers leave folders of sockets when they are killed: these go with the run's own.
    sockets = Path(task["folder"]) / f"sockets_{task['rank']}"
    sockets.mkdir()
    undo = short_place_for_sockets(str(sockets))
    try:
        yield
    finally:
        undo()


if __name__ == "__main__":
    main()
