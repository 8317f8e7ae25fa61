"""What `capture` and `run` are asked: a launch line, and on what it runs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from windtunnel.errors import SpecError
from windtunnel.questions.about import About, part

LAUNCH = "torchrun's options, then the script (or -m MODULE) and its arguments."
TAPES = ("record", "replay")


@part
class Launched:
    """A launch line as torchrun takes it."""

    positional: ClassVar[tuple[str, ...]] = ("launch",)
    launch: Annotated[tuple[str, ...], About(LAUNCH)] = ()
    cluster: Annotated[str | None, About("The cluster, e.g. h100-sxm:1024, or a file: ranks are counted on it.")] = None
    world_size: Annotated[
        int | None, About("Ranks; else --nnodes x --nproc-per-node, or the cluster's GPUs.", least=1)
    ] = None
    ranks: Annotated[str | None, About("Only these ranks, e.g. 0,8,16-23; of run, those that are real.")] = None
    seed: Annotated[int, About("Seed of what is drawn at random (0).")] = 0


@part
class Capture(Launched):
    """What a training script executes at its full scale."""

    verb: ClassVar[str] = "capture"
    steps: Annotated[int, About("Steps to run; the last is captured (2).")] = 2
    device: Annotated[Literal["cuda", "cpu"], About("What the script finds: pretended GPUs, or a CPU (cuda).")] = "cuda"
    representatives: Annotated[
        Literal["auto", "all"], About("A few ranks that stand for all, or every rank (auto).")
    ] = "auto"
    verify: Annotated[
        int | None, About("Ranks drawn at random that must equal their representative (4; all of up to 8 ranks).")
    ] = None
    answers: Annotated[
        tuple[str, ...],
        About(
            "What Python is told when it reads a tensor: loss=2.0, gradient-norm=1, flag=false, integer=1,"
            " true-share=1, or a line of the script, train.py:42=3; repeatable.",
            flag="answer",
        ),
    ] = ()
    timeout: Annotated[float, About("Seconds for one rank (600).")] = 600.0

    @property
    def answer_of(self) -> dict[str, str]:
        """What Python is told, by what it reads. Raises SpecError."""
        for text in self.answers:
            if "=" not in text:
                raise SpecError("--answer", text, "give NAME=VALUE, e.g. loss=2.0, or train.py:42=false")
        parts = (text.rpartition("=") for text in self.answers)
        return {name: value for name, _, value in parts}


@part
class Run(Launched):
    """A training script as one real rank of a large job, or as a few."""

    verb: ClassVar[str] = "run"
    rank: Annotated[int | None, About("The rank that is real (0, or RANK of the environment).")] = None
    slow: Annotated[tuple[str, ...], About("A slow peer: gpu=3:1.2 or random=1%:1.2; repeatable.")] = ()
    jitter: Annotated[
        Literal["none", "own"], About("own: peers take steps of the real rank drawn at random (none).")
    ] = "none"
    data: Annotated[
        Literal["like-me", "noise"], About("Peers' tensors: what this rank's hold, or noise (like-me).")
    ] = "like-me"
    tape: Annotated[str | None, About("record:FILE keeps what real peers say, replay:FILE answers from it.")] = None
    captured: Annotated[str | None, About("Captured folder: what ranks unlike the real one do.")] = None
    peer_times: Annotated[
        tuple[str, ...], About("Times of a rank unlike the real one, as --rows kept them; repeatable.")
    ] = ()
    technique: Annotated[
        tuple[str, ...],
        About(
            "Put a technique's real twin into the script: sparse_gradients or collective_partitioning, with"
            " :key=value,... after it."
        ),
    ] = ()
    memory: Annotated[bool, About("Profile two steps for the peak of memory (on).")] = True

    def __post_init__(self) -> None:
        if self.peer_times and self.captured is None:
            remedy = "it says what ranks unlike the real one compute: name their job too, by --captured"
            raise SpecError("peer_times", self.peer_times[0], remedy)

    @property
    def tape_of(self) -> tuple[str, str] | None:
        """What is done with a tape, and its file. Raises SpecError."""
        if self.tape is None:
            return None
        word, colon, path = self.tape.partition(":")
        if word not in TAPES or not colon or not path:
            raise SpecError("--tape", self.tape, "give record:FILE or replay:FILE")
        return word, path
