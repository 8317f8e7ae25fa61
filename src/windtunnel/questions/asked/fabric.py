"""What `fabric` is asked: one collective over a cluster, size by size."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from windtunnel.questions.about import About, part
from windtunnel.questions.asked.parts import ClusterPart

Collective = Literal[
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce", "send-recv", "ep-dispatch",
    "ep-combine",
]  # fmt: skip


@part
class Fabric:
    """How long a collective takes on a cluster, and what bandwidth that is."""

    verb: ClassVar[str] = "fabric"
    positional: ClassVar[tuple[str, ...]] = ()
    cluster: Annotated[ClusterPart, About("GPU and count, e.g. gb200:576, or a cluster file.")]
    collective: Annotated[Collective, About("Which one (all-reduce).")] = "all-reduce"
    bytes: Annotated[
        str, About("A size by the convention of nccl-tests, or from the first to the last, e.g. 64MiB..8GiB.")
    ] = "1MiB..8GiB"
    ranks: Annotated[int | None, About("Ranks of one group (all).", least=2)] = None
    stride: Annotated[int, About("GPUs from one rank of a group to the next (1).", least=1)] = 1
    algorithm: Annotated[
        str | None, About("Force one, as NCCL_ALGO does: ring, tree, nvls, nvls_tree, pat, direct.", rare=True)
    ] = None
    measured: Annotated[str | None, About("What nccl-tests printed on this cluster, to hold it against.")] = None
