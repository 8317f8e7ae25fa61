"""A question as the command line asks it: words and numbers to a workload, a deployment and an answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.physics.hardware.catalogue import parse_cluster
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Model
from windtunnel.physics.model.catalogue import load_model
from windtunnel.studies.serving.build import Engine, engine_of
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.profile import load_engine
from windtunnel.studies.serving.goodput import Curve, goodput_of, rate_curve
from windtunnel.studies.serving.result import ServingResult
from windtunnel.studies.serving.run import serve_with
from windtunnel.studies.serving.workload.files import read_workload
from windtunnel.studies.serving.workload.lengths import arrivals, lengths
from windtunnel.studies.serving.workload.requests import Workload
from windtunnel.units import parse_time

if TYPE_CHECKING:
    from windtunnel.studies.serving.disaggregated.pools import Pools

MADE = 1000  # requests of an open loop that names no number


def made_or_read(
    path: Path | None,
    count: int | None,
    rate: float | None,
    cv: float,
    prompt: int | None,
    output: int | None,
    ratio: float,
    concurrency: int | None,
    waves: int,
    seed: int,
    *,
    default_rate: bool = False,
) -> Workload:
    """The workload of a file, or one made from lengths and a rate or a concurrency. Raises UserError."""
    if path is not None:
        if prompt is not None or output is not None:
            raise SpecError(
                "--prompt", prompt, "a file of requests has lengths of its own: leave --prompt and --output out"
            )
        if not path.exists():
            raise InputFileError(path, "is not there", "give a CSV or JSONL of requests")
        return read_workload(path, rate_per_s=rate, cv=cv, concurrency=concurrency, requests=count, seed=seed)
    if prompt is None or output is None:
        raise UserError("no requests are given: add --workload FILE, or --prompt N --output N")
    for name, value in (("--prompt", prompt), ("--output", output), ("--waves", waves), ("--requests", count)):
        if value is not None and not 1 <= value <= 10_000_000:
            raise SpecError(name, value, "give a whole number of 1 to 10000000")
    if concurrency is not None:
        if not 1 <= concurrency <= 100_000:
            raise SpecError("--concurrency", concurrency, "give 1 to 100000")
        n = concurrency * waves if count is None else count
        prompts, outputs = lengths(n, prompt, output, ratio, seed)
        return Workload(prompts, outputs, None, concurrency, name=f"{prompt} in, {output} out")
    if rate is None:
        if not default_rate:
            raise UserError("no load is given: add --rate R (open loop) or --concurrency C (closed loop)")
        rate = 1.0
    n = MADE if count is None else count
    prompts, outputs = lengths(n, prompt, output, ratio, seed)
    return Workload(prompts, outputs, arrivals(n, rate, cv, seed), name=f"{prompt} in, {output} out")


def parsed_slo(text: str | None) -> dict[str, float]:
    """`ttft=1s,tpot=50ms` in seconds. Raises SpecError."""
    found: dict[str, float] = {}
    for part in (text or "").split(","):
        if not part.strip():
            continue
        name, equals, value = part.partition("=")
        key = f"{name.strip().lower()}_s"
        if not equals or key not in ("ttft_s", "tpot_s"):
            raise SpecError("--slo", text, "write ttft=1s,tpot=50ms")
        found[key] = parse_time(value.strip(), "--slo")
        if found[key] <= 0.0:
            raise SpecError("--slo", text, "a limit is above zero")
    return found


def counted(requests: str | None) -> int | None:
    """`--requests` as how many; None where it names a file, or is not given. Raises SpecError."""
    if requests is None or requests.isdigit():
        return None if requests is None else int(requests)
    try:
        float(requests or "0")
    except ValueError:
        return None
    raise SpecError("--requests", requests, "give a whole number of 1 to 10000000, or a file of requests")


def ask(
    model: str,
    cluster: str,
    deployment: Deployment,
    workload: Workload,
    *,
    replicas: int = 1,
    router: str = "least-loaded",
    slo: Mapping[str, float] | None = None,
    goodput: float | None = None,
    pools: tuple[str | None, str | None] = (None, None),
    kernels: Path | None = None,
    timeline: bool = False,
    cost_per_gpu_hour: float | None = None,
    curve: bool = False,
) -> tuple[ServingResult, Curve | None]:
    """The answer, and the latency-rate curve where one is wanted. Raises UserError."""
    if cost_per_gpu_hour is not None and not 0.0 <= cost_per_gpu_hour < math.inf:
        raise SpecError("--gpu-hour", cost_per_gpu_hour, "give a price of at least 0")
    built = load_model(model)
    machine = parse_cluster(cluster)
    _check_replicas(replicas, replicas * deployment.gpus if pools == (None, None) else 0, machine)
    if goodput is not None:
        if not slo:
            raise UserError("goodput needs limits: add --slo ttft=1s,tpot=50ms")
        if not 0.0 < goodput <= 1.0:
            raise SpecError("--attain", goodput, "give a share above 0, at most 1")
        if workload.concurrency is not None:
            raise SpecError("--concurrency", workload.concurrency, "goodput is a rate: use an open loop")
    if pools != (None, None):
        from windtunnel.studies.serving.disaggregated.pools import pooled_runner

        run = pooled_runner(built, machine, deployment, pools, slo or {}, cost_per_gpu_hour)
    else:
        engine = _priced(built, machine, deployment, kernels)

        def run(load: Workload) -> ServingResult:
            return serve_with(
                engine,
                load,
                replicas=replicas,
                router=router,
                slo=slo,
                timeline=timeline,
                cost_per_gpu_hour=cost_per_gpu_hour,
            )

    result = goodput_of(run, workload, goodput) if goodput is not None else run(workload)
    drawn = rate_curve(run, workload, result) if curve and workload.concurrency is None else None
    return result, drawn


def past_context(model: Model, workload: Workload) -> list[str]:
    """A warning where requests have more tokens than the model was made for: they are answered all the same."""
    longest = model.max_sequence_length
    many = int(((workload.input_tokens + workload.output_tokens) > longest).sum())
    told = f"{many:,} of {len(workload):,} requests pass the {longest:,} tokens that {model.name} is made for: a server"
    return [f"{told} refuses them unless its configuration says otherwise"] if many else []


def refusals(result: ServingResult) -> list[str]:
    """A warning where requests are more than a replica can ever hold."""
    if not (result.feasible and result.refused):
        return []
    return [f"{result.refused:,} of {result.requests:,} requests are refused: {result.refusal} in the KV cache"]


def priced(model: str, cluster: str, deployment: Deployment, replicas: int, kernels: Path | None = None) -> Engine:
    """The engine that a question names, for `replicas` of it. Raises UserError."""
    machine = parse_cluster(cluster)
    _check_replicas(replicas, replicas * deployment.gpus, machine)
    return _priced(load_model(model), machine, deployment, kernels)


def priced_pools(
    model: str, cluster: str, deployment: Deployment, replicas: int, words: tuple[str | None, str | None]
) -> Pools:
    """Pools of prefill and decode that a question names, for `replicas` pairs of them. Raises UserError."""
    from windtunnel.studies.serving.disaggregated.pools import pools_in_words

    machine = parse_cluster(cluster)
    pools = pools_in_words(load_model(model), machine, deployment, words)
    _check_replicas(replicas, replicas * pools.gpus, machine)
    return pools


def _check_replicas(replicas: int, needed: int, machine: Cluster) -> None:
    if replicas < 1:
        raise SpecError("--replicas", replicas, "give at least 1")
    if needed > machine.n_gpus:
        raise SpecError("--replicas", replicas, f"{needed} GPUs are more than the cluster's {machine.n_gpus}")


def _priced(model: Model, machine: Cluster, deployment: Deployment, kernels: Path | None) -> Engine:
    if kernels is None:
        return engine_of(model, machine, deployment)
    from windtunnel.studies.serving.step_time.given import given_prices

    whose = load_engine(deployment.engine)
    prices = given_prices(kernels, model, deployment, machine, whose.framework, whose.release)
    return engine_of(model, machine, deployment, prices=prices, prices_from=f"given by {kernels}{prices.timed_on}")
