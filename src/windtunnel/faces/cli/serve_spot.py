"""`windtunnel serve MODEL --cluster SPEC --spot TRACE.csv`: a model on machines that come and go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.arguments import typed
from windtunnel.faces.cli.output import note, print_answer, show
from windtunnel.units import parse_time

if TYPE_CHECKING:
    from windtunnel.physics.hardware.cluster import Cluster
    from windtunnel.physics.model.architecture import Model
    from windtunnel.studies.serving import Deployment, Workload
    from windtunnel.studies.serving.spot.study import SpotServing


def answer_spot(
    model: str,
    cluster: str,
    deployment: Deployment,
    workload: Workload,
    trace: Path,
    policies: str,
    notice: str,
    gpu_hour: float | None,
    json: bool,
) -> None:
    """Ask and print. Raises UserError."""
    from windtunnel.faces.report.serving.views import spot_serving_document

    answer = serve_on_spot(
        model,
        cluster,
        workload,
        trace,
        [one.strip() for one in policies.split(",") if one.strip()],
        deployment=deployment,
        notice_s=parse_time(notice, "--notice"),
        usd_per_gpu_hour=gpu_hour,
    )
    if json:
        print_answer(
            "serve --spot",
            answer.to_dict(),
            provenance={"machines": str(trace), "step times": list(answer.sources)},
            warnings=answer.warnings,
        )
        return
    for warning in answer.warnings:
        note(warning)
    show(spot_serving_document(answer.to_dict()))


@typed
def serve_on_spot(
    model: str | Model,
    cluster: str | Cluster,
    workload: Workload,
    trace: Path | str,
    policies: Sequence[str] = ("spotserve", "reroute", "restart"),
    *,
    deployment: Deployment | None = None,
    notice_s: float = 30.0,
    usd_per_gpu_hour: float | None = None,
) -> SpotServing:
    """Serve on the machines of a trace (CSV, as `survive_spot` reads it) under each policy.

    Machines of `cluster`'s kind; `cluster` says how many GPUs there are at most. Time begins with the trace's first
    second; a machine that goes in it has its notice `notice_s` before. Raises SpecError, UnknownNameError,
    InputFileError, UserError.
    """
    from windtunnel.physics.hardware.catalogue import parse_cluster
    from windtunnel.physics.model.catalogue import load_model
    from windtunnel.studies.resilience.spot.trace import read_steps
    from windtunnel.studies.serving import Deployment
    from windtunnel.studies.serving.spot import study

    first, steps = read_steps(Path(trace))
    return study.serve_on_spot(
        load_model(model) if isinstance(model, str) else model,
        parse_cluster(cluster) if isinstance(cluster, str) else cluster,
        Deployment() if deployment is None else deployment,
        workload,
        study.Availability(first, steps),
        policies,
        notice_s=notice_s,
        usd_per_gpu_hour=usd_per_gpu_hour,
    )
