"""What `fleet flows` is asked."""

from __future__ import annotations

from typing import Annotated, ClassVar

from windtunnel.questions.about import About, part


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
