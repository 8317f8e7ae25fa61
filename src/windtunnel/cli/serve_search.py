"""`windtunnel serve ... --search`: the best placement, and what was tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windtunnel.serving import Deployment, Workload


def answer_search(
    model: str,
    cluster: str,
    deployment: Deployment,
    workload: Workload,
    slo: Mapping[str, float],
    attain: float,
    rate: float | None,
    json: bool,
) -> None:
    """Search, and print the placement."""
    from windtunnel.cli.output import print_json, stdout
    from windtunnel.hardware import parse_cluster
    from windtunnel.model import load_model
    from windtunnel.serving.goodput import rate_of
    from windtunnel.serving.placement.search import Question, search_distserve

    wanted = rate_of(workload) if rate is None and workload.arrival_ns is not None else rate or 0.0
    question = Question(load_model(model), parse_cluster(cluster), deployment, workload, slo, attain, wanted)
    found = search_distserve(question)
    if json:
        print_json(found.to_dict())
        return
    console = stdout()
    for phase, layout, count in (
        ("prefill", found.prefill, found.prefill_instances),
        ("decode", found.decode, found.decode_instances),
    ):
        console.print(f"{phase:8} {count} x tp{layout[0]} pp{layout[1]}")
    console.print(f"{found.gpus} GPUs carry {found.rate_per_s:g} requests/s at {attain:.0%} attainment")
    console.print(
        f"goodput  {found.goodput_per_gpu_per_s:.3g} requests/s per GPU, best of {len(found.tried)} candidates"
    )
    if found.runner_up is not None:
        console.print(f"next     {found.runner_up.per_gpu:.3g} requests/s per GPU: {_words(found.runner_up)}")


def _words(candidate: object) -> str:
    parts = []
    for phase in ("prefill", "decode"):
        layout = getattr(candidate, phase)
        if layout is not None:
            parts.append(f"{phase} tp{layout[0]} pp{layout[1]}")
    return ", ".join(parts)
