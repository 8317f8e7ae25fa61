"""What a fleet is asked besides running a trace: `when`, `pack`, `flows`, `lint`, `usage`, `share`, `live` ..."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from windtunnel.questions.about import About, part
from windtunnel.questions.asked.fleet.jobs import BANDS, SITE, JobTrace, Scheduled, Simulated


@part
class FleetWhen(Simulated):
    """When one job will start and end, how sure that is, and why it waits."""

    verb: ClassVar[str] = "fleet when"
    positional: ClassVar[tuple[str, ...]] = ("trace", "job")
    job: Annotated[str, About("The job, by its name.")]
    seeds: Annotated[int, About("Draws that give the band (40).", BANDS, least=1, most=100_000)] = 40
    spread: Annotated[
        float,
        About("Of the logarithm of run times that are not yet known; 0: as traced (0.3).", BANDS, least=0, most=10),
    ] = 0.3


@part
class FleetPack(JobTrace):
    """Pods on unlike nodes, packed once."""

    verb: ClassVar[str] = "fleet pack"
    cluster: Annotated[str, About("CSV of unlike nodes: node,cpu_milli,memory_mib,gpus,gpu_model.", SITE)]
    policy: Annotated[
        str,
        About("One or several, with commas: random, bestfit, dotprod, gpupacking, gpuclustering, fgd (fgd)."),
    ] = "fgd"
    seed: Annotated[int, About("Of the first shuffle (0).", least=0)] = 0
    seeds: Annotated[int, About("Shuffles that figures are averaged over (10).", BANDS, least=1, most=100_000)] = 10


@part
class FleetFlows:
    """Coflows that share the ports of one switch: when each ends under a policy."""

    verb: ClassVar[str] = "fleet flows"
    positional: ClassVar[tuple[str, ...]] = ("trace",)
    trace: Annotated[str, About("A text file of coflow-benchmark's layout, such as FB2010-1Hr-150-0.txt.")]
    policy: Annotated[
        str,
        About("One or several of sebf, scf, ncf, lcf, fifo, fair, pfp, d-clas (aalo), fai, with commas (sebf)."),
    ] = "sebf"
    port: Annotated[str, About("What each port sends and receives, such as 10Gb/s (128 MiB/s).")] = ""


@part
class FleetLint(JobTrace):
    """What is wrong with a trace."""

    verb: ClassVar[str] = "fleet lint"
    cluster: Annotated[str, About("The cluster that the load is held against.", SITE)] = ""


@part
class FleetUsage(JobTrace):
    """What jobs did with the GPUs that they held."""

    verb: ClassVar[str] = "fleet usage"
    positional: ClassVar[tuple[str, ...]] = ("trace", "usage")
    usage: Annotated[str, About("JSON that Prometheus answered to query_range: DCGM's or AMD's metrics by job or pod.")]


@part
class FleetShare:
    """Jobs whose traffic comes in turns, on links that they share."""

    verb: ClassVar[str] = "fleet share"
    positional: ClassVar[tuple[str, ...]] = ("jobs",)
    jobs: Annotated[str, About("YAML of a link and jobs: period, busy, rate (docs/fleet-sharing.md).")]
    links: Annotated[int, About("Links that the jobs are spread over (1).", least=1, most=64)] = 1


@part
class FleetLive(Scheduled):
    """The commands of a trace run here under one policy, beside their simulation."""

    verb: ClassVar[str] = "fleet live"
    host: Annotated[
        tuple[str, ...], About("What starts a command on a node, such as 'ssh b'; one for each, '' is here.", SITE)
    ] = ()


@part
class FleetBeside:
    """Batch jobs run here beside a service, held back by control groups so that it stays in time."""

    verb: ClassVar[str] = "fleet beside"
    positional: ClassVar[tuple[str, ...]] = ("jobs",)
    jobs: Annotated[str, About("YAML of batch jobs: job, command, cpus, memory (docs/fleet-live.md).")]
    service: Annotated[str, About("Command of the service, such as 'python serve.py'.")]
    probe: Annotated[
        str, About("Address that is asked for its latency; without: what it writes to $WINDTUNNEL_LATENCIES.")
    ] = ""
    every: Annotated[float, About("Between two requests of the probe (20ms).", least=1e-3, most=10, unit="time")] = 0.02
    p95: Annotated[
        float | None, About("The service's 95th percentile at most; by default --slower.", least=1e-6, unit="time")
    ] = None
    slower: Annotated[float, About("Times its p95 alone that it may have beside batch jobs (1.1).", least=1.001)] = 1.1
    alone: Annotated[float, About("For how long it is measured alone (5s).", least=0.2, most=3600, unit="time")] = 5.0
    again: Annotated[
        float,
        About("After how long batch jobs pause to measure it alone again; 0: never (60s).", least=0, unit="time"),
    ] = 60.0
    longest: Annotated[float, About("After how long it ends, done or not (1h).", least=1, unit="time")] = 3600.0
    policy: Annotated[
        Literal["rose", "rose-qos"], About("Who leaves first: the youngest, or whose leaving costs least (rose-qos).")
    ] = "rose-qos"
