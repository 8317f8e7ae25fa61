"""`windtunnel serve MODEL --cluster ...`."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from windtunnel.errors import UserError
from windtunnel.faces.cli.output import note, print_answer, show, working


def serve(
    model: str | None = None,
    /,
    *,
    cluster: Annotated[str | None, Parameter(help="GPU type and number, h100-sxm:8, or a cluster file.")] = None,
    engine: Annotated[
        str, Parameter(help="Engine and release: vllm-0.12, sglang-0.5.9, trtllm-1.0; or a file.")
    ] = "vllm",
    tp: Annotated[int, Parameter(help="Tensor parallelism.")] = 1,
    pp: Annotated[int, Parameter(help="Pipeline parallelism.")] = 1,
    dp: Annotated[int, Parameter(help="Attention data parallelism inside a replica.")] = 1,
    ep: Annotated[int | None, Parameter(help="Expert parallelism; by default as the engine does.")] = None,
    replicas: Annotated[int, Parameter(help="Equal replicas behind one router.")] = 1,
    router: Annotated[
        Literal["round-robin", "least-loaded", "prefix-aware"], Parameter(help="Which replica gets a request.")
    ] = "least-loaded",
    weights: Annotated[str, Parameter(help="Weights: bf16, fp8, fp8_block, nvfp4, mxfp4, int4.")] = "bf16",
    expert_weights: Annotated[str | None, Parameter(help="Weights of routed experts, where different.")] = None,
    kv: Annotated[Literal["bf16", "fp8"] | None, Parameter(help="KV cache; the engine's choice by default.")] = None,
    max_num_seqs: Annotated[int | None, Parameter(help="Sequences in a batch.")] = None,
    max_num_batched_tokens: Annotated[int | None, Parameter(help="Tokens in a step.")] = None,
    num_gpu_blocks: Annotated[int | None, Parameter(help="KV blocks of a GPU, as the engine's log says.")] = None,
    block_size: Annotated[int | None, Parameter(help="Tokens of a KV block.")] = None,
    gpu_memory_utilization: Annotated[float | None, Parameter(help="Share of memory the engine takes.")] = None,
    prefix_caching: Annotated[bool | None, Parameter(help="Keep prefixes for later requests.")] = None,
    chunked_prefill: Annotated[bool | None, Parameter(help="Cut long prompts into chunks.")] = None,
    workload: Annotated[Path | None, Parameter(help="Trace: CSV or JSONL of lengths and arrivals.")] = None,
    requests: Annotated[
        str | None, Parameter(help="A file of requests as --workload; or how many requests to make.")
    ] = None,
    requests_out: Annotated[Path | None, Parameter(help="Write each request's stamps here, as CSV.")] = None,
    rate: Annotated[
        float | None, Parameter(help="Requests per second: of made requests, or a trace scaled to it.")
    ] = None,
    cv: Annotated[float, Parameter(help="Burstiness of arrivals: 0 constant, 1 Poisson (default).")] = 1.0,
    prompt: Annotated[int | None, Parameter(help="Prompt tokens of made requests.")] = None,
    output: Annotated[int | None, Parameter(help="Output tokens of made requests.")] = None,
    length_ratio: Annotated[float, Parameter(help="Lengths uniform from this share of it to all of it (1).")] = 1.0,
    concurrency: Annotated[int | None, Parameter(help="Closed loop: so many requests in flight.")] = None,
    waves: Annotated[int, Parameter(help="Closed loop: requests per slot (10).")] = 10,
    slo: Annotated[str | None, Parameter(help="Limits: ttft=1s,tpot=50ms.")] = None,
    goodput: Annotated[
        bool, Parameter(negative="", help="Find the highest rate that keeps --slo for --attain.")
    ] = False,
    attain: Annotated[float, Parameter(help="Share of requests that must meet the limits (0.99).")] = 0.99,
    prefill: Annotated[str | None, Parameter(help="Prefill pool of its own: 2xtp4.")] = None,
    decode: Annotated[str | None, Parameter(help="Decode pool of its own: 1xtp8.")] = None,
    search: Annotated[
        Literal["distserve", "alpaserve", "muxserve"] | None,
        Parameter(help="Find the best placement for --rate and --slo; alpaserve, muxserve: of several models."),
    ] = None,
    kernels: Annotated[Path | None, Parameter(help="Measured kernels: a table, or the folder that holds them.")] = None,
    speculative_tokens: Annotated[int, Parameter(help="Tokens drafted per step (0).")] = 0,
    acceptance: Annotated[float, Parameter(help="Chance that a drafted token is kept.")] = 0.0,
    gpu_hour: Annotated[float | None, Parameter(help="Price of a GPU hour, for cost per million tokens.")] = None,
    seed: Annotated[int, Parameter(help="Seed of made lengths and arrivals (0).")] = 0,
    listen: Annotated[
        str | None,
        Parameter(help="Answer requests of OpenAI's API at this address, in simulated time: 127.0.0.1:8000."),
    ] = None,
    speed: Annotated[float, Parameter(help="With --listen: simulated seconds in a second (1).")] = 1.0,
    lose: Annotated[
        str | None, Parameter(help="With --listen: replica 0 is lost at 30 s, back 10 s later: 0@30s+10s.")
    ] = None,
    max_waiting: Annotated[int, Parameter(help="With --listen: requests that may wait; more get 503 (4096).")] = 4096,
    record: Annotated[
        Path | None, Parameter(help="With --listen: write requests as they come here, for --requests.")
    ] = None,
    real: Annotated[
        Literal["tiny-llama"] | None,
        Parameter(help="Serve a small real model on this machine under each policy: tiny-llama."),
    ] = None,
    spot: Annotated[
        Path | None,
        Parameter(help="Machines as they come and go, CSV: time_s,event,node or minute,added,removed."),
    ] = None,
    spot_policy: Annotated[
        str, Parameter(help="With --spot, commas between them: spotserve, reroute, restart (all).")
    ] = "spotserve,reroute,restart",
    notice: Annotated[str, Parameter(help="With --spot: from the notice to the loss of a machine (30s).")] = "30s",
    report: Annotated[
        Path | None,
        Parameter(alias="--page", help="Write an HTML report with latency-rate curves here."),
    ] = None,
    trace: Annotated[Path | None, Parameter(help="Write the timeline of one replica for Perfetto here.")] = None,
    full: Annotated[bool, Parameter(negative="", help="Print all of the answer, not its first screen alone.")] = False,
    json: Annotated[bool, Parameter(negative="", help="Print the result as JSON.")] = False,
) -> int | None:
    """Predict latency, throughput and attainment of a served model.

    Parameters
    ----------
    model
        A model of the catalogue, the path of a config.json, or a pool of several models: pool.yaml.
        For --search alpaserve and muxserve several, each with
        its share of the rate: llama-3.1-8b=3,qwen3-32b=1.
    """
    asked_for = dict(locals())  # the flags, before anything else has a name here
    from windtunnel.faces.cli.serve_flags import check_flags
    from windtunnel.files.write import check_writable, write_atomically
    from windtunnel.physics.model.catalogue import load_model
    from windtunnel.questions.header import band_entry
    from windtunnel.studies.serving import Deployment
    from windtunnel.studies.serving.question import ask, counted, made_or_read, parsed_slo, past_context, refusals

    is_pool = model is not None and model.endswith((".yaml", ".yml"))
    given = {name: value for name, value in asked_for.items() if name != "model" and value != DEFAULTS[name]}
    count = counted(requests)
    if requests is not None and count is None:
        given["workload"] = workload = Path(requests)
    if spot is not None and (is_pool or listen is not None or real is not None):
        raise UserError("--spot is for one model and made or read requests: leave out the pool, --listen and --real")
    check_flags(given, pool=is_pool)
    for place in (requests_out, report, trace):
        if place is not None:
            check_writable(place)
    layout = Deployment(
        engine=engine,
        tp=tp,
        pp=pp,
        attn_dp=dp,
        moe_ep=ep,
        weights=weights,
        expert_weights=expert_weights,
        kv=kv,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        num_gpu_blocks=num_gpu_blocks,
        block_size=block_size,
        gpu_memory_utilization=gpu_memory_utilization,
        prefix_caching=prefix_caching,
        chunked_prefill=chunked_prefill,
        speculative_tokens=speculative_tokens,
        acceptance=acceptance,
    )
    if model is not None and is_pool:
        from windtunnel.faces.cli.serve_pool import answer_pool

        answer_pool(Path(model), report, json)
        return None
    if real is not None:
        from windtunnel.faces.report.serving.views import real_document
        from windtunnel.real.serving.compare import REQUESTS, compare

        with working("serving for real"):
            compared = compare(requests=REQUESTS if count is None else count, rate=rate, cv=cv, seed=seed).to_dict()
        if json:
            print_answer("serve --real", compared)
        else:
            show(real_document(compared))
        return None
    if model is None:
        raise UserError("no model is named: give one of the catalogue, a config.json, or a pool.yaml")
    if cluster is None:
        raise UserError("no machine is named: add --cluster h100-sxm:8")
    if listen is not None:
        from windtunnel.faces.cli.serve_listen import answer_requests

        answer_requests(
            model, cluster, layout, listen, replicas, router, speed, lose, max_waiting, record, workload, output,
            length_ratio, seed, kernels, pools=(prefill, decode),
        )  # fmt: skip
        return None
    with working("serving"):
        asked = made_or_read(
            workload, count, rate, cv, prompt, output, length_ratio, concurrency, waves, seed, default_rate=goodput
        )
        if spot is not None:
            from windtunnel.faces.cli.serve_spot import answer_spot

            answer_spot(model, cluster, layout, asked, spot, spot_policy, notice, gpu_hour, json)
            return None
        if search is not None:
            from windtunnel.faces.cli.serve_search import answer_search

            answer_search(search, model, cluster, layout, asked, parsed_slo(slo), attain, rate, json)
            return None
        result, curve = ask(
            model,
            cluster,
            layout,
            asked,
            replicas=replicas,
            router=router,
            slo=parsed_slo(slo),
            goodput=attain if goodput else None,
            pools=(prefill, decode),
            kernels=kernels,
            timeline=trace is not None,
            cost_per_gpu_hour=gpu_hour,
            curve=report is not None,
        )
    if requests_out is not None:
        write_atomically(requests_out, result.requests_csv().encode())
        note(f"wrote {requests_out}")
    if report is not None:
        from windtunnel.faces.report.draw.page import write_page
        from windtunnel.faces.report.serving.views import serving_document

        write_page(serving_document(result, () if curve is None else curve.points), report)
        note(f"wrote {report}")
    if trace is not None:
        from windtunnel.faces.report.serving.trace import write_trace

        write_trace(result.timeline, trace)
        note(f"wrote {trace}")
    warned = past_context(load_model(model), asked) if result.feasible else []
    warned += refusals(result)
    warned += [result.search.warning] if result.search is not None and result.search.warning else []
    if json:
        low_high = result.tpot_band_s
        print_answer(
            "serve",
            result.to_dict(),
            band=None if low_high is None else band_entry("tpot_s.mean", *low_high),
            provenance={"step times": list(result.sources)},
            warnings=warned,
        )
    else:
        for warning in warned:
            note(warning)
        from windtunnel.faces.report.serving.views import serving_document

        show(serving_document(result), full=full)
    return None


DEFAULTS = {name: one.default for name, one in signature(serve).parameters.items()}
