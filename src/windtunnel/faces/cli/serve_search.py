"""`windtunnel serve ... --search`: the best placement, and what was tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from windtunnel.errors import SpecError, UserError
from windtunnel.faces.cli.output import note, print_answer, stdout

if TYPE_CHECKING:
    from windtunnel.studies.serving import Deployment, Workload


def answer_search(
    search: str,
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
    if search != "distserve":
        _answer_several(search, model, cluster, deployment, workload, slo, rate, json)
        return
    from windtunnel.physics.hardware import parse_cluster
    from windtunnel.physics.model import load_model
    from windtunnel.studies.serving.goodput import rate_of
    from windtunnel.studies.serving.placement.search import MOST_RATE, Question, search_distserve

    wanted = rate_of(workload) if rate is None and workload.arrival_ns is not None else rate or 0.0
    question = Question(load_model(model), parse_cluster(cluster), deployment, workload, slo, attain, wanted)
    found = search_distserve(question)
    never = [one for one in found.tried if one.goodput_per_s > MOST_RATE / 2]
    if never:
        raise UserError(
            f"{len(never)} of {len(found.tried)} candidates miss the limits at no rate up to {MOST_RATE:g} per second"
            f" with {len(workload)} requests; use more requests (--requests), or tighter limits"
        )
    there = question.cluster.n_gpus
    more = [f"the cluster has {there} GPUs: --rate {wanted:g} takes {found.gpus}"] if found.gpus > there else []
    if json:
        print_answer(f"serve --search {search}", found.to_dict(), warnings=more)
        return
    for line in more:
        note(line)
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


def _answer_several(
    search: str,
    models: str,
    cluster: str,
    deployment: Deployment,
    workload: Workload,
    slo: Mapping[str, float],
    rate: float | None,
    json: bool,
) -> None:
    from windtunnel.physics.hardware import parse_cluster
    from windtunnel.physics.model import load_model
    from windtunnel.studies.serving.goodput import rate_of
    from windtunnel.studies.serving.placement.several import Several, search_alpaserve, search_muxserve
    from windtunnel.units import format_many

    if workload.arrival_ns is None:
        raise SpecError("--concurrency", workload.concurrency, "a placement is sought for a rate: use an open loop")
    names, shares = _shares(models)
    whole = rate_of(workload) if rate is None else rate
    rates = tuple(whole * share / sum(shares) for share in shares)
    asked = Several(tuple(load_model(name) for name in names), rates, parse_cluster(cluster), deployment, workload, slo)
    found = search_alpaserve(asked) if search == "alpaserve" else search_muxserve(asked)
    placed = {name for group in found.groups for name in group.models}
    lacking = [model.name for model in asked.models if model.name not in placed]
    without = [f"{', '.join(lacking)}: no place, so none of their requests is served"] if lacking else []
    if json:
        print_answer(f"serve --search {search}", found.to_dict(), warnings=without)
        return
    for line in without:
        note(line)
    console = stdout()
    for group in found.groups:
        words = group.layout if search == "muxserve" else f"{group.layout}: {', '.join(group.models) or 'idle'}"
        console.print(f"{format_many(group.gpus, 'GPU')}  {words}", highlight=False)
    in_time = search == "alpaserve"
    what = "of requests in time" if in_time else "requests/s in all"
    console.print(f"{_told(found.value, in_time)} {what}, best of {found.tried} {found.what_was_tried}")
    if found.runner_up_value is not None:
        costs = _told(found.value - found.runner_up_value, in_time) + ("" if in_time else " requests/s")
        console.print(f"next: {found.runner_up}, {_told(found.runner_up_value, in_time)}: it costs {costs}")


def _told(value: float, share: bool) -> str:
    return f"{value:.1%}" if share else f"{value:.4g}"


def _shares(models: str) -> tuple[list[str], list[float]]:
    """`a=3,b=1` or `a,b`: names, and shares of the rate."""
    names, shares = [], []
    for part in models.split(","):
        name, equals, share = part.strip().partition("=")
        try:
            value = float(share) if equals else 1.0
        except ValueError:
            value = 0.0
        if not name or not 0.0 < value < 1e9:
            raise SpecError("MODEL", models, "write models with their shares of the rate: llama-3.1-8b=3,qwen3-32b=1")
        names.append(name)
        shares.append(value)
    if len(set(names)) < len(names):
        raise SpecError("MODEL", models, "name each model once")
    return names, shares
