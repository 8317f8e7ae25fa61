"""One process that plays one rank: the rank's environment, the virtual world, the recorder, and the unmodified script.

The script runs as `__main__`, as torchrun would start it, until the wanted step has been recorded; then `StepTaken`
ends it. That is a BaseException, so that scripts that catch what goes wrong do not catch it; what `finally` and `with`
do on the way out still happens, and is not recorded.

What became of it is left in the folder: `outcome_<rank>.json`, and `program_<rank>.jsonl.gz` where there is one.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from windtunnel.errors import UserError
from windtunnel.real.capture.arguments import Launch
from windtunnel.real.capture.processes.clock import quicken_clock
from windtunnel.real.capture.processes.file_mailbox import FileMailbox, write_whole
from windtunnel.real.capture.processes.files_of_others import WRITER, FilesOfOthers, files_of_others
from windtunnel.real.capture.processes.other_threads import come_to_rest
from windtunnel.real.capture.processes.read_only import copy_files, hold_files
from windtunnel.real.capture.processes.same_user import user_stays
from windtunnel.real.capture.processes.script_errors import (
    error_document,
    missing_package,
    place_in_script,
    write_place,
)
from windtunnel.real.capture.processes.steps import Steps
from windtunnel.real.capture.processes.write_overlay import folders_made, short_place_for_sockets, writes_aside
from windtunnel.real.capture.replacements import Replacements
from windtunnel.real.capture.virtual_world.refusals import WorldError
from windtunnel.studies.programs.program import RankProgram
from windtunnel.studies.programs.program_file import runs_of, write_program
from windtunnel.studies.programs.summary import summary

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import ModuleType

    from windtunnel.real.capture.recorder.recorder import Recorder
    from windtunnel.real.capture.virtual_world.world import World

# The launcher knows who waits for whom, and ends what cannot end; this is for where it does not.
MAILBOX_TIMEOUT_S = 24 * 3600.0
CUT_AGAIN_S = 0.5  # of CPU time, where a script catches what ends it
ASIDE = "aside"  # in place of the rank's number: of a rank that is run again under another task


class StepTaken(BaseException):
    """The wanted step is recorded; the script ends here."""


def play(task: Mapping[str, Any]) -> int:
    """Play a rank to the end of the wanted step; the exit status. Never raises."""
    start = time.monotonic()
    folder, rank = Path(task["folder"]), int(task["rank"])
    faulthandler.enable()
    launch, is_aside = task["launch"], "own" in task or "clock" in task
    played = Played("" if launch["is_module"] else launch["target"])

    def say_where(_number: int, frame: FrameType | None) -> None:
        played.write_calls(folder / f"calls_{rank}.json", is_partial=not played.is_over)
        write_place(folder / f"where_{rank}", frame)

    signal.signal(signal.SIGUSR1, say_where)
    random.seed(f"rank {rank}")  # a fork draws its own; so does each rank here, and whenever it is run again the same
    try:
        copied = copy_files(folder / f"copies_{rank}_{os.getpid()}", folder)
        if "clock" in task:
            quicken_clock(task["clock"])
        programs, facts = _played(task, folder, "" if copied else hold_files(folder), played, copied=copied)
        if not is_aside:
            for key, rank_program in programs.items() if len(programs) > 1 else ():
                write_whole(program_file(folder, rank, key), write_program(rank_program))
            write_whole(program_file(folder, rank), write_program(programs[facts["main"]]))
        outcome = {"status": "ok", **summary(programs[facts["main"]], facts["digest"]), **facts}
    except BaseException as error:  # whatever a script can do
        what = {"ended": isinstance(error, NoStepError), "contradicts": isinstance(error, WorldError)}
        outcome = {"status": "error", **what, **error_document(error), "line": place_in_script(error.__traceback__)}
        outcome["missing"] = missing_package(error)
    outcome |= played.facts()
    ended = bool(outcome.get("ended"))
    cut_short = outcome["status"] != "ok" and not ended  # what it would have called is not known
    calls = folder / f"calls_{ASIDE if is_aside else rank}.json"
    played.write_calls(calls, is_partial=cut_short, is_over=ended)
    outcome["seconds"] = time.monotonic() - start
    outcome["cpu_seconds"], outcome["peak_rss_bytes"] = resources_used()
    write_whole(folder / f"outcome_{rank}.json", json.dumps(outcome).encode())
    return 0 if outcome["status"] == "ok" else 1


def program_file(folder: Path, rank: int, key: str = "") -> Path:
    """Where a rank's program is left; with a step's digest, that of this step."""
    return folder / f"program_{rank}{key and '_' + key}.jsonl.gz"


class Played:
    """What there is to say of a rank, however it ended."""

    def __init__(self, target: str) -> None:
        self._target = target  # path of the script; "" of a module
        self.recorder: Recorder | None = None
        self.steps: Steps | None = None
        self.is_over = False  # the script is: it calls nothing more

    def write_calls(self, path: Path, *, is_partial: bool = False, is_over: bool = False) -> None:
        """Leave the log of its calls, in as many steps as all ranks run; or to the end of a script that is over."""
        if self.recorder is not None:
            steps = self.steps.last_step if self.steps is not None else None
            log = self.recorder.journal.log(is_partial=is_partial, is_over=is_over, steps=steps)
            write_whole(path, json.dumps(log.to_plain()).encode())

    def facts(self) -> dict[str, object]:
        """For the launcher: what is wrong, and which files of the user's were run."""
        if self.recorder is None:
            return {"races": [], "replicas": [], "own_reads": [], "files": {}}
        from windtunnel.real.capture.fake_tensors.control_flow import script_files

        return {
            "races": [race.to_dict() for race in (*self.recorder.journal.races, *self.recorder.replicas.findings)],
            "replicas": self.recorder.replicas.facts,
            "own_reads": list(self.recorder.own_reads),
            "files": script_files(self._target),
        }


def _played(
    task: Mapping[str, Any], folder: Path, not_held: str, played: Played, *, copied: bool
) -> tuple[dict[str, RankProgram], dict[str, Any]]:
    import torch
    import torch.distributed as dist
    from torch.multiprocessing import reductions

    from windtunnel.real.capture.fake_tensors.checkpoints import checkpoints_kept
    from windtunnel.real.capture.fake_tensors.control_flow import script_files
    from windtunnel.real.capture.fake_tensors.fake import fake_tensors
    from windtunnel.real.capture.recorder.recorder import Recorder
    from windtunnel.real.capture.torch_private import distributed as compat
    from windtunnel.real.capture.virtual_world.world import World

    compat.require_tried_torch()
    launch = Launch(**{**task["launch"], "arguments": tuple(task["launch"]["arguments"])})
    rank, wanted, device = int(task["rank"]), int(task["steps"]), task["device"]
    os.environ.update(launch.environment(rank))
    torch.set_num_threads(1)
    _leave_modes_in_forks(compat)
    box = FileMailbox(folder, rank)
    files = FilesOfOthers(box, MAILBOX_TIMEOUT_S)
    is_again = bool(task.get("is_again"))
    own = dict if is_again else partial(script_files, "" if launch.is_module else launch.target)
    steps = Steps(rank, wanted, box, MAILBOX_TIMEOUT_S, goes_on=bool(task.get("goes_on")), files=own)

    def cut_short(*_: object) -> None:
        if steps.may_be_cut():
            steps.is_cut = True
            raise StepTaken

    signal.signal(signal.SIGPROF, cut_short)

    def stepped(program: RankProgram) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if not steps.done and steps.take(replace(program, **_meshes(compat, world))):
            recorder.replicas.note_next()
            recorder.journal.is_loose = not come_to_rest(is_let_go=box.is_let_go)
            raise StepTaken
        signal.setitimer(signal.ITIMER_PROF, steps.patience_s, CUT_AGAIN_S)

    local_world = min(launch.local_world_size, launch.world_size)
    local = rank % local_world
    devices = ("cpu", "cuda") if device == "cuda" else ("cpu",)
    own_notes: dict[str, None] = {not_held: None} if not_held else {}

    def say_once(text: str) -> None:
        own_notes[text] = None

    def together(kind: str, process_group: dist.ProcessGroup | None) -> None:
        if dist.is_initialized():
            group = world.group_named((process_group or dist.group.WORLD).group_name)
            if group is not None:
                recorder.journal.note_together(kind, group)

    try:
        with (
            fake_tensors(device, gpus=local_world, local_rank=local, note=say_once, missing=task["stand_ins"]),
            compat.real_device_meshes(),
            user_stays(say_once),
            Replacements((reductions, "rebuild_tensor", compat.outside(reductions.rebuild_tensor))),  # shared memory
            compat.ddp_outside_modes(),
            World(
                rank,
                launch.world_size,
                local_world_size=local_world,
                mailbox=box,
                mailbox_timeout_s=MAILBOX_TIMEOUT_S,
                any_can_run=True,
                devices=devices,
                listener=files,
            ) as world,
            Recorder(
                *(rank, launch.world_size, world),
                answers=replace(answers_of(task["answers"]), own=task.get("own"), own_lines=task.get("own_lines", ())),
                on_step=stepped,
                device=device,
                first=wanted,
                on_bound=(lambda: None) if is_again else steps.look,
            ) as recorder,
        ):
            world.fake, played.recorder, played.steps = True, recorder, steps
            try:
                with (
                    _files_of(rank, folder, files, copied=copied),
                    checkpoints_kept(say_once, is_shared=rank == WRITER, together=together),
                ):
                    run_script(launch)
            except SystemExit as error:  # an ordinary end for some scripts
                if error.code not in (None, 0):
                    raise
    except StepTaken:
        pass
    except BaseException:
        if not steps.done and not steps.is_behind():  # done: it came while the script was cleaning up after its end
            raise
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    played.is_over = True
    steps.close()
    if not steps.digests:
        raise NoStepError(recorder.steps, wanted, launch.line)
    main = steps.programs[steps.main]
    check_not_empty(main, launch.line)
    notes = tuple(dict.fromkeys((*main.notes, *recorder.notes, *world.notes, *own_notes)))
    more = {"script": launch.line, "arguments": list(launch.arguments)}
    programs = {
        key: replace(program, notes=notes, facts={**program.facts, **more}) for key, program in steps.programs.items()
    }
    fact_names = ("torch", "device", "parameters", "allocator", "step")
    facts = programs[steps.main].facts
    return programs, {
        **steps.facts(),
        "facts": {name: facts[name] for name in fact_names if name in facts},
        "faked": _faked(launch, device),
        "buffers": [[runs_of(members), part, tensors] for members, part, tensors in recorder.buffers.all()],
        "tails": [[runs_of(members), sorted(places)] for members, places in recorder.tails.items()],
    }


@contextmanager
def _files_of(rank: int, folder: Path, files: FilesOfOthers, *, copied: bool) -> Iterator[None]:
    """What a rank finds in place of the user's files; `copied`: the system has copied them already."""
    others = files_of_others(files, writes=rank == WRITER)
    if not copied:
        with writes_aside(folder / f"written_{rank}", folder, lenient=rank > 0), others:
            yield
        return
    sockets = folder / f"sockets_{rank}"
    sockets.mkdir(exist_ok=True)
    undo = short_place_for_sockets(str(sockets))
    try:
        with folders_made() if rank else nullcontext(), others:
            yield
    finally:
        undo()


class EmptyStepError(UserError):
    """A step was recorded in which nothing is computed: its tensors have no elements, or nothing is multiplied."""

    def __init__(self, script: str, what: str) -> None:
        super().__init__(
            f"{script}: {what}, so a step that trains was not captured; a size that the script reads from a tensor"
            " holds no data here: say what it reads, --answer FILE.py:LINE=NUMBER"
        )


def check_not_empty(program: RankProgram, script: str) -> None:
    """Refuse a step whose forward pass works on tensors without elements. Raises EmptyStepError."""
    ops = [op for op in program.ops if op.kind == "compute" and op.phase == "forward" and op.outputs]
    empty = [op for op in ops if all(0 in spec.shape for spec in op.outputs)]
    if 2 * len(empty) > len(ops):
        first = empty[0]
        shape = f"{first.name.removesuffix('.default')} gives {list(first.outputs[0].shape)}"
        raise EmptyStepError(script, f"{len(empty)} of {len(ops)} ops of the forward pass give empty tensors ({shape})")


class NoStepError(UserError):
    """The script ended before the wanted step did."""

    def __init__(self, seen: int, wanted: int, script: str) -> None:
        done = f"{seen} step{'s' if seen != 1 else ''}"
        untrained = "no optimizer was stepped, and no parameter written by hand; does it train?"
        remedy = "let it train longer, or give fewer --steps" if seen else untrained
        super().__init__(f"{script} ended after {done}, and step {wanted} was to be captured: {remedy}")


def answers_of(answers: Mapping[str, str]) -> Any:
    """`--answer` as the recorder takes it: names of its fields, or lines of the script. Raises SpecError."""
    from dataclasses import fields

    from windtunnel.errors import SpecError
    from windtunnel.real.capture.fake_tensors.control_flow import Answers

    kinds = {field.name: field.type for field in fields(Answers) if field.name not in ("by_line", "own", "own_lines")}
    by_name: dict[str, Any] = {}
    by_line: dict[str, float | int | bool] = {}
    for name, text in answers.items():
        field = name.replace("-", "_")
        value = _value(text)
        if ":" in name:
            by_line[name] = value
        elif field not in kinds:
            names = ", ".join(name.replace("_", "-") for name in kinds)
            raise SpecError("--answer", name, f"is no answer; known: {names}, or a line of the script, train.py:42")
        elif (kinds[field] == "bool") != isinstance(value, bool) or (kinds[field] == "int" and type(value) is not int):
            remedy = {"bool": "give true or false", "int": "give a whole number"}.get(
                str(kinds[field]), "give a number"
            )
            raise SpecError("--answer", f"{name}={text}", remedy)
        else:
            by_name[field] = value
    return Answers(**by_name, by_line=by_line)


def _value(text: str) -> float | int | bool:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _meshes(compat: ModuleType, world: World) -> dict[str, Any]:
    """Every DeviceMesh that the script holds: names and sizes of its dimensions, and this rank's coordinates."""
    meshes: dict[tuple[object, object], None] = {}
    with compat.outside_modes():
        for mesh in [mesh for held_mesh in world.held_meshes if (mesh := held_mesh()) is not None]:
            place = mesh.get_coordinate()
            if mesh.mesh_dim_names and place is not None:
                names, sizes = tuple(mesh.mesh_dim_names), tuple(int(size) for size in mesh.shape)
                meshes.setdefault(((names, sizes), tuple(int(at) for at in place)))
    ordered = sorted(meshes)
    return {"meshes": tuple(mesh for mesh, _ in ordered), "coordinates": tuple(place for _, place in ordered)}


_left: list[AbstractContextManager[object]] = []  # contexts that forks of a rank stay in


def _leave_modes_in_forks(compat: ModuleType) -> None:
    """Data-loader workers are forks: they make real tensors, which nobody records."""

    def leave() -> None:
        _left.append(compat.outside_modes())
        _left[-1].__enter__()

    os.register_at_fork(after_in_child=leave)


def _faked(launch: Launch, device: str) -> list[str]:
    others = launch.world_size - 1
    peers = f"{others:,} peers of torch.distributed, each of which behaves as this rank does"
    faked = [peers, "tensors: they have shapes, and hold no data"]
    if device == "cuda":
        from windtunnel.real.capture.fake_tensors.pretended_gpu import PretendedGpu

        faked.append(f"torch.cuda: {launch.local_world_size} x {PretendedGpu().name} a node")
    return faked


def run_script(launch: Launch) -> None:
    """The script as `__main__`, with what a fresh interpreter would give it."""
    import runpy

    sys.argv = [launch.target, *launch.arguments]
    if launch.is_module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(launch.target, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(launch.target).resolve().parent))
        runpy.run_path(launch.target, run_name="__main__")


def resources_used() -> tuple[float, int]:
    """Seconds on a core, and the most memory at once, of this process."""
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
