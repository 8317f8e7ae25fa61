"""Parts of questions about jobs: a trace, a cluster, policies, and what happens to nodes."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from windtunnel.questions.about import About, part

SITE, NODES, BANDS = "Cluster", "Nodes that fail", "Bands"
WHERE = About("Which lines: workload=1,load=1.0.", rare=True)


@part
class JobTrace:
    """A trace of jobs, or some of its lines."""

    positional: ClassVar[tuple[str, ...]] = ("trace",)
    trace: Annotated[str, About("CSV, Parquet, YAML, or text of `sacct -P`, `scontrol show job`, `squeue`.")]
    where: Annotated[str, WHERE] = ""


@part
class Scheduled(JobTrace):
    """Jobs on a cluster under policies."""

    cluster: Annotated[
        str,
        About("t4:64, t4:16x4 (nodes x GPUs), or a YAML file; by default as many GPUs as jobs held at once.", SITE),
    ] = ""
    policy: Annotated[
        str,
        About("One or several, separated by commas; a YAML file is one with its parameters (fifo)."),
    ] = "fifo"
    gpus_per_node: Annotated[
        int | None, About("Where the usual node of that GPU is not meant.", SITE, least=1, rare=True)
    ] = None
    restart: Annotated[
        float | None,
        About("Without progress after each new allocation, such as 5min or 30 (seconds).", least=0, unit="time"),
    ] = None


@part
class Simulated(Scheduled):
    """What a run of a trace takes beside its jobs and policies."""

    tables: Annotated[str | None, About("Folder of measured throughputs.")] = None
    placement: Annotated[
        Literal["nodes", "pool", "compatible"],
        About("nodes: gangs on real nodes; pool: GPUs are a count; compatible: by their traffic (nodes).", SITE),
    ] = "nodes"
    change: Annotated[
        tuple[str, ...],
        About("What if: nodes=+32, quota.QUEUE=256, slurm.PATH=VALUE, or a field: policy=easy; repeatable.", SITE),
    ] = ()
    seed: Annotated[int, About("Of policies and clusters that draw (0).", least=0)] = 0
