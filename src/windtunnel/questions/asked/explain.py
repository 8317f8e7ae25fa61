"""What `explain` and `watch` are asked."""

from __future__ import annotations

from typing import Annotated, ClassVar

from windtunnel.questions.about import About, part


@part
class Explain:
    """Why a recorded job is slower than it should be."""

    verb: ClassVar[str] = "explain"
    positional: ClassVar[tuple[str, ...]] = ("traces",)
    traces: Annotated[
        tuple[str, ...],
        About(
            "An operation table (.parquet), or one Kineto trace (.json, .json.gz) or Chakra trace (.et, .json) a rank."
        ),
    ]
    without: Annotated[
        tuple[str, ...],
        About(
            "Step time if this were ideal: worker=12, stage=3, replica=8, step=40 or op=backward-compute; repeatable,"
            " all together."
        ),
    ] = ()


@part
class Watch:
    """Which rank makes all others wait, or is slow."""

    verb: ClassVar[str] = "watch"
    positional: ClassVar[tuple[str, ...]] = ("folder",)
    folder: Annotated[
        str,
        About("Where the ranks' logs are: one mapped file each, as windtunnel.real.survive.RankLog writes them."),
    ]
    patience: Annotated[
        float, About("How long nobody may move until it is a hang (3s).", unit="time", least=0, most=1e9)
    ] = 3.0
    over: Annotated[bool, About("The job is over: judge it as of its last beat.")] = False
