"""Running a script as one or several real ranks among virtual peers: the processes around them.

    emulate(Emulation(launch, rank=0, cluster="h100-sxm:1024", ...)) -> Outcome
    emulate_ranks(Emulation(launch, 0, "h100-sxm:1024", ranks=(0, 8), ...)) -> {0: Outcome, 8: Outcome}

Each real rank runs in a process of its own (`rank.py`), in a session of its own. All are ended, with everything they
started, when they are done, one fails, on an interrupt, or when this process goes; their folder of temporary files goes
with them. Control messages that they wait for (pipelines send shapes) come from the real rank that sends them, or from
peers that are captured on the side, on demand (`windtunnel.capture`).

Killed itself, this process can clean nothing. Its children then end (`process.die_with_parent`), and the next start
ends what these had started and removes the folder (`leftovers.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from windtunnel.errors import SpecError, UserError
from windtunnel.process import dying_with_parent, interrupts_later, signals_after_a_fork, terminated_is_an_end
from windtunnel.real.capture.processes import file_mailbox
from windtunnel.real.capture.processes.leftovers import (
    FOLDER_VARIABLE,
    RUN_PREFIX,
    Keeper,
    end_all,
    folder_of_this_process,
    sweep,
)

if TYPE_CHECKING:
    from windtunnel.physics.hardware import Cluster
    from windtunnel.real.capture.arguments import Launch

NOT_RUN_ON_GPU = "the CUDA path of `windtunnel run` is not yet run on a GPU: take its times with care"
WATCHED = 8  # virtual peers drawn in the timeline
_LOOK_S, _END_S = 0.05, 10.0
_STDERR = 2  # the descriptor: sys.stderr may have none


@dataclass(frozen=True)
class Emulation:
    """What to run, and how."""

    launch: Launch
    rank: int
    cluster: str  # `parse_cluster` takes it; as many GPUs as ranks
    slow: Mapping[int, float] = field(default_factory=dict)  # rank -> how many times longer it computes
    jitter: bool = False  # virtual peers run the real rank's steps drawn at random, instead of a typical one
    seed: int = 0
    data: Literal["like-me", "noise"] = "like-me"
    tape: tuple[str, str] | None = None  # ("record" | "replay", path)
    captured: Path | None = None  # a captured folder: programs of ranks unlike the real one
    peer_times: tuple[Path, ...] = ()  # of such ranks, as runs of theirs measured them
    memory: bool = True
    aside: bool = False  # what the script prints goes to stderr: stdout is for one document
    ranks: tuple[int, ...] = ()  # all that are real, where there are several; `rank` is the first
    techniques: tuple[str, ...] = ()  # whose real twin is put into the script, e.g. "sparse_gradients:ratio=0.01"

    @property
    def real(self) -> tuple[int, ...]:
        """All real ranks."""
        return self.ranks or (self.rank,)


@dataclass(frozen=True)
class Outcome:
    """What came of it. `facts` is what the real rank told (`outcome.py`)."""

    status: str  # ok | exit | raised | refused | out of memory | interrupted | died
    exit_status: int
    facts: Mapping[str, Any]
    message: str = ""
    place: str = ""  # file:line of the script
    details: str = ""  # traceback

    @property
    def settled_steps_s(self) -> list[float]:
        """Steps after the plan held, or the second half; without those that a profiler slowed."""
        steps, profiled = self.facts.get("step_s") or [], set(self.facts.get("profiled") or ())
        numbered_steps = [(number, seconds) for number, seconds in enumerate(steps) if number not in profiled]
        settled_at = self.facts.get("settled_at")
        if settled_at is not None:
            late = [seconds for number, seconds in numbered_steps if number + 1 >= settled_at]
            if len(late) >= 3:
                return late
        return [seconds for _, seconds in numbered_steps[len(numbered_steps) // 2 :]]

    @property
    def step_s(self) -> float | None:
        """Median of the settled steps."""
        steps = self.settled_steps_s
        return median(steps) if steps else None


def emulate(emulation: Emulation) -> Outcome:
    """Run it. Whatever the end, no process and no temporary file is left.

    Raises:
        UserError: what is asked cannot be.
        KeyboardInterrupt: interrupted; the script was told, and given time to end.
    """
    return emulate_ranks(emulation)[emulation.rank]


def emulate_ranks(emulation: Emulation) -> dict[int, Outcome]:
    """What came of each real rank. Where one failed, only that is in it: the others were ended.

    Raises: as `emulate`.
    """
    _check(emulation)
    if find_spec("torch") is None:
        remedy = "install it with: pip install 'windtunnel[torch]', or run windtunnel in the script's environment"
        raise UserError(f"run needs PyTorch; {remedy}")
    sweep()
    with terminated_is_an_end(), _Run(emulation) as run:
        return dict(sorted(run.watch().items()))  # not in the order in which they ended


class _Run:
    def __init__(self, emulation: Emulation) -> None:
        self.asked = emulation
        self.folder = folder_of_this_process(RUN_PREFIX)
        self.folder.mkdir(mode=0o700)
        self._keeper = Keeper(self.folder)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._peers: Any = None  # workers that play captured peers

    def __enter__(self) -> _Run:
        try:
            more = {"parent": os.getpid(), "ranks": self.asked.real, "watch": watched(self.asked)}
            task = {**asdict(self.asked), **more, "tape": self.asked.tape or ()}
            (self.folder / "task.json").write_text(json.dumps(task, default=str))  # paths as text
            environment = {**os.environ, FOLDER_VARIABLE: str(self.folder)}
            if self.asked.launch.local_world_size > 1:
                environment.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
            environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the profiler warns of what it cannot know
            for rank in self.asked.real:
                words = [sys.executable, "-P", "-m", "windtunnel.real.emulate.rank", str(self.folder), str(rank)]
                with signals_after_a_fork():
                    self._processes[rank] = subprocess.Popen(
                        words,
                        start_new_session=True,
                        preexec_fn=dying_with_parent(),
                        env=environment,
                        stdout=_STDERR if self.asked.aside else None,
                    )
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def watch(self) -> dict[int, Outcome]:
        """Until all have ended, or one has failed."""
        ended: dict[int, Outcome] = {}
        try:
            while len(ended) < len(self._processes):
                failed: list[tuple[float, int, Outcome]] = []
                for rank, process in self._processes.items():
                    if rank in ended or (status := process.poll()) is None:
                        continue
                    ended[rank] = outcome = self._outcome(rank, status)
                    if outcome.status != "ok":
                        failed.append((self._told_at(rank), rank, outcome))
                if failed:
                    _, rank, outcome = min(failed, key=lambda failure: failure[:2])  # others fail because it is gone
                    return {rank: outcome}
                for rank in self._processes:
                    key = file_mailbox.waits(self.folder, rank) if rank not in ended else None
                    if key is not None:
                        self._deliver(rank, key)
                time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            self._interrupt()
            raise
        return ended

    def _told_at(self, rank: int) -> float:
        """When a rank said what became of it; one that died without a word was first."""
        try:
            return (self.folder / f"outcome_{rank}.json").stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def _outcome(self, rank: int, exit_status: int) -> Outcome:
        facts: dict[str, object] = {}
        with suppress(FileNotFoundError, ValueError):
            facts = json.loads((self.folder / f"outcome_{rank}.json").read_text())
        if not facts:
            return Outcome("died", 1, {}, died(exit_status))
        status = str(facts.get("status", "ok"))
        message, place = str(facts.get("message", "")), str(facts.get("place", ""))
        return Outcome(status, exit_status, facts, message, place, str(facts.get("traceback", "")))

    def _interrupt(self) -> None:
        """Tell the script as a terminal would, and give it time; a second interrupt ends the patience."""
        for process in self._processes.values():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGINT)
        until = time.monotonic() + _END_S
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            for process in self._processes.values():
                process.wait(max(0.0, until - time.monotonic()))

    # Peers that send control messages

    def _deliver(self, rank: int, key: str) -> None:
        """Have the sender of a control message played, and bring what it sent; a real rank sends its own."""
        from windtunnel.real.capture.launch import PLAYS, Options, task_of
        from windtunnel.real.capture.processes.scheduler import Workers

        sender = file_mailbox.sender_of(key)
        if sender is None or (sender in self._processes and self._processes[sender].poll() is None):
            return
        if self._peers is None:
            self._peers = Workers(PLAYS)
            self._peers.__enter__()
        if sender not in self._processes:
            self._peers.run([sender], task_of(self.asked.launch, Options(steps=1, device="cpu")))
        for message in sorted((self._peers.folder / file_mailbox.MESSAGES).iterdir()):
            place = self.folder / file_mailbox.MESSAGES / message.name
            is_real = file_mailbox.writer_of(message) in self._processes
            if not place.exists() and not message.name.startswith(".") and not is_real:
                file_mailbox.write_whole(place, message.read_bytes())
        if file_mailbox.waits(self.folder, rank) == key:
            raise UserError(
                f"rank {rank} waits for {file_mailbox.name_of(key)}, which rank {sender} did not send; the "
                "two take different branches of the script: check who sends to whom"
            )

    # The end

    def _close(self) -> None:
        with interrupts_later():
            if self._peers is not None:
                self._peers.close()
            processes, self._processes = self._processes, {}
            end_all(self.folder, [process.pid for process in processes.values()])
            for process in processes.values():
                process.wait()
            shutil.rmtree(self.folder, ignore_errors=True)
            self._keeper.close()


def died(status: int) -> str:
    """What the end of a process without a word tells."""
    if status >= 0:
        return f"the script's process ended with status {status} and said nothing: it called os._exit, perhaps"
    name = signal.Signals(-status).name
    if name == "SIGKILL":
        return "the script's process was killed (SIGKILL): the machine is out of memory, perhaps; try a smaller batch"
    return f"the script's process was ended by {name}; python -X faulthandler shows where"


def watched(emulation: Emulation) -> list[int]:
    """Virtual peers for the timeline: slow ones, the next, the last."""
    size, rank = emulation.launch.world_size, emulation.rank
    wanted = [*sorted(emulation.slow, key=lambda number: -emulation.slow[number]), (rank + 1) % size, size - 1]
    return [peer for peer in dict.fromkeys(wanted) if peer not in emulation.real][:WATCHED]


def _check(emulation: Emulation) -> None:
    if emulation.techniques or any(word.startswith("--technique") for word in emulation.launch.arguments):
        from windtunnel.real.emulate.ddp_technique import checked, none_behind_the_script

        checked(emulation.techniques)
        none_behind_the_script(emulation.launch.arguments)
    if emulation.techniques and emulation.tape is not None:
        raise SpecError(
            "--technique", emulation.techniques[0], "a tape holds what the script alone said: leave out --tape"
        )
    size = emulation.launch.world_size
    for rank in emulation.real:
        if not 0 <= rank < size:
            raise SpecError("--ranks" if emulation.ranks else "--rank", rank, f"ranks are 0 to {size - 1}")
        if rank in emulation.slow:
            raise SpecError("--slow", f"gpu={rank}", "is a real rank, which is as fast as it is: slow another")
    if len(emulation.real) > 1 and emulation.data == "noise":
        raise SpecError("--data", "noise", "is for one real rank: several hold their own, and peers what these hold")
    if len(set(emulation.real)) < len(emulation.real) or (emulation.ranks and emulation.ranks[0] != emulation.rank):
        raise SpecError("--ranks", ",".join(map(str, emulation.ranks)), "name each rank once")


def slow_ranks(texts: Sequence[str], cluster: Cluster, seed: int, real: Sequence[int]) -> dict[int, float]:
    """Factors of `gpu=3:1.2` and `random=1%:1.2`; chance spares real ranks, which are as fast as they are.

    Raises SpecError on disturbances that no peer can be given.
    """
    from windtunnel.physics.step.disturbances.parse import read_slow

    factors: dict[int, float] = {}
    for slowdown in read_slow(texts, cluster, seed):
        if slowdown.kind not in ("gpu", "random"):
            remedy = "virtual peers can be given gpu=NUMBER:FACTOR or random=SHARE%:FACTOR"
            raise SpecError("--slow", slowdown.text, remedy)
        for rank in slowdown.gpus:
            if rank in real and slowdown.kind == "random":
                continue
            factors[rank] = max(factors.get(rank, 1.0), slowdown.factor)
    return factors
