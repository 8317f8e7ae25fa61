"""Whether a capture says what real ranks do: the same command line on gloo processes, and captured, step for step.

    python validation/emulation/captured_truth.py --ranks 2 -- train.py --device=cpu        # in the script's folder
    python validation/emulation/captured_truth.py --ranks 2 --only 0 -- -m package.train

For each rank: the ops of the wanted step in order, with shapes and types; its communications, with members and bytes;
the peak of its tensors. Ops that only give memory or look at data are left out on both sides, as they are in a program;
of the real ranks also what gloo does in `wait` (it copies this rank's part of a reduce-scatter out there, as NCCL does
not), what PyTorch reckons with to find a rank's place in a mesh, marks of
DistributedDataParallel for parameters that were used, and the sizes of objects that are gathered.
Exit status 1 where anything differs by more than `--most` (of the peak, .01).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from same import differences
from truth import environment, free_port

if TYPE_CHECKING:
    from windtunnel.studies.programs.program import Op

PATIENCE_S = 1200.0
SETTLED_S = 0.005  # gloo's own thread lets go of tensors a little after who waits goes on


class StepTaken(BaseException):
    """The wanted step is recorded."""


def play(folder: Path, step: int, target: list[str]) -> None:
    """One real rank, in this process; its program lies in the folder then, and it goes on: others may wait for it."""
    import torch.distributed as dist
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from windtunnel.real.capture.arguments import Launch
    from windtunnel.real.capture.processes.rank_process import run_script
    from windtunnel.real.capture.recorder.recorder import Recorder
    from windtunnel.real.capture.replacements import Replacements
    from windtunnel.real.capture.torch_private.distributed import outside, real_device_meshes
    from windtunnel.real.capture.virtual_world.objects import CALLS
    from windtunnel.real.emulate.tape.record_real import Recording
    from windtunnel.studies.programs.communication import Communication
    from windtunnel.studies.programs.program import RankProgram
    from windtunnel.studies.programs.program_file import write_program

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    heard: list[Communication] = []
    ended, stepped = [0], [0]  # communications by the end of each step, and when the last optimizer had stepped

    def bound() -> None:
        ended.append(stepped[-1])

    def done(program: RankProgram) -> None:
        if (folder / f"program_{rank}.jsonl.gz").exists():
            return
        calls = heard[ended[-2] : ended[-1]]
        (folder / f"calls_{rank}.json").write_text(json.dumps([described(one) for one in calls if not one.is_control]))
        whole = folder / f"program_{rank}.part"
        whole.write_bytes(write_program(replace(program, notes=())))
        whole.rename(folder / f"program_{rank}.jsonl.gz")

    wait = dist.Work.wait

    def settled(work: dist.Work, *args: object) -> object:
        value = wait(work, *args)
        time.sleep(SETTLED_S)
        return value

    register_optimizer_step_post_hook(lambda *_: stepped.append(len(heard)))
    is_module = target[0] == "-m"
    name, *arguments = target[1:] if is_module else target
    with (
        Replacements((dist.Work, "wait", outside(settled))),
        Replacements(*((dist, name, outside(getattr(dist, name))) for name in CALLS)),
        real_device_meshes(),
        Recording(None, heard=heard.append),
        Recorder(rank, world, None, device="cpu", first=step, on_step=done, on_bound=bound),
    ):
        run_script(Launch(name, tuple(arguments), is_module, world, world))


def described(call: object) -> list[object]:
    """A communication, as far as it has to be equal."""
    return [getattr(call, name) for name in ("kind", "bytes", "members", "peer", "dtype", "reduce_op")]


def real(folder: Path, ranks: int, step: int, target: list[str]) -> None:
    """Run all ranks to the end of the step."""
    port = free_port()
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "--play", str(folder), "--step", str(step), "--", *target],
            env={**environment(rank, ranks, port), "TORCH_CPP_LOG_LEVEL": "ERROR"},
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        for rank in range(ranks)
    ]
    until = time.monotonic() + PATIENCE_S
    try:
        while len(list(folder.glob("program_*.jsonl.gz"))) < ranks:
            ended = [rank for rank, one in enumerate(running) if one.poll() is not None]
            lost = [rank for rank in ended if not (folder / f"program_{rank}.jsonl.gz").exists()]
            if lost:
                status = running[lost[0]].returncode
                raise RuntimeError(f"real rank {lost[0]} ended (exit status {status}) before step {step} did")
            if time.monotonic() > until:
                raise RuntimeError(f"real ranks take more than {PATIENCE_S:.0f} s")
            time.sleep(0.1)
    finally:
        for one in running:
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)  # its loader's workers too
            one.wait()


def captured(folder: Path, ranks: int, step: int, target: list[str]) -> None:
    """Capture every rank."""
    words = ["--world-size", str(ranks), "--device", "cpu", "--steps", str(step), "--out", str(folder / "captured")]
    only = ["--ranks", ",".join(str(rank) for rank in range(ranks)), "--json"]
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "windtunnel", "capture", *words, *only, *target],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def marks(op: Op) -> bool:
    """Whether DistributedDataParallel notes here, on the host, that a parameter was used, or forgets it of all."""
    numbers = [spec[1] for spec in op.inputs] == ["int32"] and len(op.inputs[0][0]) <= 1
    return op.name.startswith("aten.fill_") and numbers


def compare(folder: Path, rank: int, most: float) -> bool:
    """Print what differs of a rank; whether nothing does."""
    from windtunnel.studies.programs.program_file import read_program
    from windtunnel.studies.programs.rank_classes.equality import peak

    one = read_program(folder / f"program_{rank}.jsonl.gz")
    other = read_program(next((folder / "captured").rglob(f"*_{rank}.jsonl.gz")))
    rows = [
        [
            [op.name.removesuffix(".default"), [list(spec[:2]) for spec in (*op.inputs, *op.outputs)]]
            for op in program.ops
            if op.kind not in ("communication", "wait", "sync") and not op.name.startswith("c10d") and not marks(op)
        ]
        for program in (one, other)
    ]
    heard = json.loads((folder / f"calls_{rank}.json").read_text())
    said = [op.communication for op in other.ops if op.communication is not None and not op.communication.is_control]
    calls = [heard, json.loads(json.dumps([described(call) for call in said]))]
    held, would = peak(one)[0], peak(other)[0]
    wrong = False
    for what, pair in (("ops", rows), ("communications", calls)):
        found = differences(*pair)
        wrong |= bool(found)
        print(f"rank {rank}: {len(pair[0])} {what}: {'equal' if not found else 'DIFFERENT'}", flush=True)
        print("".join(f"    {line[:300]}\n" for line in found), end="")
    off = would / held - 1.0
    print(f"rank {rank}: peak {held:,} bytes real, {would:,} captured ({100 * off:+.3f} %)", flush=True)
    return not wrong and abs(off) <= most


def main() -> int:
    """Run, capture and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--step", type=int, default=2)
    parser.add_argument("--most", type=float, default=0.01, help="by which a peak may be off")
    parser.add_argument("--play", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("target", nargs="+")
    given = parser.parse_args()
    if given.play:
        play(given.play, given.step, given.target)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        real(folder, given.ranks, given.step, given.target)
        captured(folder, given.ranks, given.step, given.target)
        fits = [compare(folder, rank, given.most) for rank in range(given.ranks)]
        return 0 if all(fits) else 1


if __name__ == "__main__":
    sys.exit(main())
