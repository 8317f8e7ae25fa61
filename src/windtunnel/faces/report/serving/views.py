"""A served model as views; a pool of models; machines that are taken away; weights that come and go; a real engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from windtunnel.faces.report.prediction.spec_words import spec_table
from windtunnel.studies.serving.result import Regime, ServingResult
from windtunnel.studies.serving.study import ServingAnswer
from windtunnel.units import format_many
from windtunnel.views import (
    Axis,
    Bar,
    Bars,
    Cell,
    Column,
    Curve,
    Document,
    Field,
    Figure,
    Figures,
    Headline,
    Limit,
    Notes,
    Number,
    Part,
    Series,
    Table,
    Tone,
    View,
    table_of,
)
from windtunnel.views.text import text_of

Answer = Mapping[str, Any]  # a JSON document of serving: the keys of its `to_dict`
LATENCIES = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "inter-token"), ("e2e", "end to end"), ("queue", "queueing"))
PARTS = ("mean", "p50", "p90", "p95", "p99")
QUANTILES = ("mean", "p50", "p99")
CHARTS = (  # picture, mean and tail among the points of a curve, the limit that it is held against
    ("TTFT", "ttft_mean_s", "ttft_p99_s", "ttft_s"),
    ("TPOT", "tpot_mean_s", "tpot_p99_s", "tpot_s"),
    ("end to end", "e2e_mean_s", "", ""),
)
MEMORY = {"weights": "mem-0", "activations": "mem-3", "reserved": "mem-6", "kv_cache": "mem-1"}
ROBUST = 20.0  # a picture shows no more than so many times its limit


def serving_document(result: ServingResult, points: Sequence[Answer] = ()) -> Document:
    """Everything that there is to see of a served model. `points`: of its curve over rates."""
    answer: Answer = result.to_dict()
    spec, load = answer["spec"], answer["spec"]["workload"]
    rate = f", {_rate(load['rate_per_s'])} requests/s" if load.get("rate_per_s") else ""
    rate = f", {load['concurrency']} in flight" if load.get("concurrency") else rate
    rate += f" of {load['sessions']} sessions" if load.get("sessions") else ""
    there = spec["cluster_gpus"]
    unused = f" · uses {result.gpus} of the cluster's {there} GPUs" if result.gpus < there else ""
    under = (
        f"{spec['engine']} · {_layout(spec)} · {load['requests']:,} requests, {load['input_tokens_mean']:,.0f} tokens"
        f" in, {load['output_tokens_mean']:,.0f} out{rate}{unused}"
    )
    title = f"{spec['model']} on {result.gpus} × {spec['gpu']}"
    if not result.feasible:
        reason = result.reason if result.refusal else f"Does not fit: {result.reason.removeprefix('does not fit: ')}"
        views: list[View] = [Headline(f"{reason}.", tone="bad")]
        return Document("a model served", title, views, subtitle=under)
    return Document("a model served", title, list(_views(result)), list(_details(result, answer, points)), under)


def _views(result: ServingResult) -> Iterator[View]:
    yield _verdict(result)
    figures = [
        Figure("output", Number(result.output_tokens_per_s, "tokens/s"), f"{_rate(result.requests_per_s)} requests/s"),
    ]
    if result.goodput_requests_per_s is not None and result.search is not None:
        figures.append(Figure("goodput", Number(result.goodput_requests_per_s, "requests/s")))
    if result.ttft is not None:
        low, high = result.ttft_band_s or (None, None)
        tail = f"p99 over requests {text_of(result.ttft.p99, 's')}"
        figures.append(Figure("TTFT", Number(result.ttft.mean, "s", low, high), tail))
    if result.tpot is not None:
        low, high = result.tpot_band_s or (None, None)
        tail = f"p99 over requests {text_of(result.tpot.p99, 's')}"
        figures.append(Figure("TPOT", Number(result.tpot.mean, "s", low, high), tail))
    if result.slo_attainment is not None:
        limits = ", ".join(f"{name[:-2].upper()} {text_of(value, 's')}" for name, value in result.slo.items())
        figures.append(Figure("meet the limits", Number(result.slo_attainment, "share"), limits, result.slo_attainment))
    if result.cost_per_million_tokens is not None:
        cost = Number(result.cost_per_million_tokens, "$")
        figures.append(Figure("cost", cost, "per million output tokens"))
    if result.joules_per_token is not None and result.joules_band is not None:
        each = Number(result.joules_per_token, "J", *result.joules_band)
        figures.append(Figure("energy", each, f"per output token; {result.gpu_watts:,.0f} W a GPU"))
    yield Figures(figures)
    rows = [
        (name, *(getattr(getattr(result, key), part) for part in PARTS))
        for key, name in LATENCIES
        if getattr(result, key) is not None
    ]
    yield Table("Latencies", [Column(""), *(Column(part, "s") for part in PARTS)], rows, by_row=True)
    use = f"mean batch {result.batch_mean:.1f}; KV {result.kv_use_mean:.0%} used, {result.kv_use_peak:.0%} at most"
    lines = [result.started.words()]
    lines += [f"on {format_many(result.gpus, 'GPU')} a step runs {result.utilisation:.0%} of the time; {use}"]
    why = next((words for words in result.sources if words.startswith("band: ")), "band: ")[len("band: ") :]
    why = f"; {why}" if why else ""
    lines += [f"p5–p95 of TTFT and TPOT are the bands of what is predicted of their means{why}"] if result.ttft else []
    lines.append(f"{result.finished:,} requests finished, {result.refused:,} refused")
    if result.preemptions or result.prefix_hit_rate or result.tier_hit_rates:
        text = text_of(result.prefix_hit_rate, "share")
        below = "".join(
            f", {text_of(rate, 'share')} copied from {name}" for name, rate in result.tier_hit_rates.items()
        )
        lines.append(f"{result.preemptions:,} preemptions; {text} of prompt blocks were known{below}")
    if result.adapter_loads is not None:
        lines.append(f"{result.adapter_loads:,} times an adapter was brought to a GPU")
    yield Notes("How it ran", lines)


def _verdict(result: ServingResult) -> Headline:
    tones: dict[Regime, Tone] = {"stable": "good", "near saturation": "warn", "over": "bad"}
    text = {
        "stable": "Keeps up",
        "near saturation": "Near saturation: queueing is most of TTFT, which is no promise",
        "over": "Over its capacity: the queue grows as long as requests come, and TTFT is no promise",
    }[result.regime]
    if result.slo_attainment is not None:
        text += f"; {text_of(result.slo_attainment, 'share')} of the requests meet their limits"
    if result.search is not None and result.goodput_requests_per_s is not None:
        document: Answer = result.to_dict()
        search = document["search"]
        text = (
            f"Serves {_rate(result.goodput_requests_per_s)} requests/s, {search['attain']:.0%} within their limits"
            f" ({search['rates_tried']} rates tried)"
        )
    output = text_of(result.output_tokens_per_s, "tokens/s")
    text += f"; {output} of output, {_rate(result.requests_per_s)} requests/s."
    return Headline(text, tones[result.regime])


def _details(result: ServingResult, answer: Answer, points: Sequence[Answer]) -> Iterator[View]:
    for name, mean, tail, limit in CHARTS:
        keys = {"mean": mean, "p99": tail}
        series = [
            Series(
                kind,
                [float(point["rate_per_s"]) for point in points if point[key]],
                [float(point[key]) for point in points if point[key]],
                labels=[f"{kind}, {point['regime']}" for point in points if point[key]],
            )
            for kind, key in keys.items()
            if key and any(point[key] for point in points)
        ]
        if not series:
            continue
        bound = result.slo.get(limit)
        values = sorted(value for line in series for value in line.y)
        high = min(values[-1], ROBUST * bound) if bound else values[-1]
        start = float(bound) if bound else values[len(values) // 2]
        axis = Axis(name, "s", log=True, low=min(values[0], start) * 0.9, high=max(high, start) * 1.1)
        label = "limit" if bound else "a limit to try"
        limits = [Limit(start, label, True)] if bound or not result.slo else []  # none beside those that were given
        yield Curve(f"{name} by rate", Axis("requests/s", "requests/s", low=0.0), axis, series, limits)
    sizes = [(name, answer["memory_bytes_per_gpu"].get(name, 0.0)) for name in MEMORY]
    parts = [Part(name.replace("_", " "), value, MEMORY[name]) for name, value in sizes if value > 0]
    if parts:
        yield Bars("Memory of a GPU", "B", [Bar("GPU", parts)])
    yield Notes("What it rests on", result.sources)
    yield spec_table("The question", answer["spec"])


def _rate(rate: float) -> str:
    """Three digits, more where there are thousands."""
    return f"{rate:,.0f}" if rate >= 1000.0 else f"{rate:.3g}"


def _layout(spec: Answer) -> str:
    if spec.get("prefill"):
        sides = (f"{name} {spec[name]['replicas']} x {spec[name]['layout']}" for name in ("prefill", "decode"))
        return ", ".join(sides)
    deployment = spec["deployment"]
    sizes = (
        (short, deployment.get(name, 1))
        for short, name in (("tp", "tp"), ("pp", "pp"), ("dp", "attn_dp"), ("ep", "moe_ep"))
    )
    words = " ".join(f"{short}{size}" for short, size in sizes if size and size > 1) or "tp1"
    return f"{spec['replicas']} x {words}, {deployment['weights']}"


def served_document(served: ServingAnswer) -> Document:
    """A deployment under a load; latency over rate where that was asked for."""
    document = serving_document(served.result, () if served.curve is None else served.curve.points)
    headlines = [
        Headline(figure.sentence, tone="warn" if figure.verdict == "slower" else "good") for figure in served.measured
    ]
    return replace(document, views=[*headlines, *document.views])


def pool_document(answer: Answer, name: str = "a file") -> Document:
    """A pool of models. `answer`: `PoolResult.to_dict()`."""
    total, models = answer["total"], answer["models"]
    attainment = total["slo_attainment"]
    verdict = f"{total['finished']:,} of {total['requests']:,} requests are served" + (
        "" if attainment is None else f", {text_of(attainment, 'share')} of them within their limits"
    )
    figures = [
        Figure("output", Number(total["output_tokens_per_s"], "tokens/s"), f"over {text_of(total['duration_s'], 's')}"),
        Figure("uses", Number(total["gpu_seconds"] / 3600, "GPU hours")),
    ]
    if total["goodput_requests_per_s"] is not None:
        figures.append(Figure("within limits", Number(total["goodput_requests_per_s"], "requests/s")))
    if total["cost"] is not None:
        per = total["cost_per_million_output_tokens"]
        note = "" if per is None else f"{text_of(per, '$')} per million output tokens"
        figures.append(Figure("cost", Number(total["cost"], "$"), note))
    lines = []
    if total["replicas_lost"]:
        lines.append(
            f"{total['replicas_lost']:,} replicas lost, {total['requests_moved']:,} requests went on elsewhere"
        )
    if total["unfinished"]:
        lines.append(f"{total['unfinished']:,} requests never found a machine")
    views: list[View] = [
        Headline(f"{verdict}.", tone="good" if attainment is None or attainment >= 0.99 else "warn"),
        Figures(figures),
        Notes("Mind", lines, "warn"),
        _pooled(models),
    ]
    groups = [(key, group["gpu_seconds"] / 3600, group["cost"]) for key, group in answer["groups"].items()]
    columns = (Column("machines"), Column("GPU hours", ""), Column("cost", "$"))
    details: list[View] = [Table("Machines", columns, groups)]
    series = []
    for key, model in models.items():
        at = [float(point["at_s"]) for point in model["replicas"]]
        serving = [float(point["serving"]) for point in model["replicas"]]
        both = [float(point["serving"] + point["starting"]) for point in model["replicas"]]
        series += [Series("serving", at, serving, form="steps", panel=key)]
        series += [Series("with those that start", at, both, form="steps", panel=key, dashed=True)]
    details.append(Curve("Replicas over time", Axis("time", "s", low=0.0), Axis("replicas", "count"), series))
    details.append(spec_table("The question", {key: model["spec"] for key, model in models.items()}))
    return Document("a pool of models served", name, views, details, f"{len(models)} models")


def _pooled(models: Answer) -> Table:
    rows: list[list[Cell]] = []
    for name, model in models.items():
        times = [
            None if model[key] is None else model[key][what] for key in ("ttft_s", "tpot_s") for what in ("mean", "p99")
        ]
        counts = [point["serving"] for point in model["replicas"]] or [0]
        some = f"{min(counts)} to {max(counts)}" if min(counts) != max(counts) else f"{counts[0]}"
        done = f"{model['finished']:,} of {model['requests']:,}"
        attainment, tokens = model["slo_attainment"], model["output_tokens_per_s"]
        rows.append([name, done, *times, attainment, tokens, some, model["utilisation"], model["regime"]])
    columns = [
        *(Column("model"), Column("finished"), Column("TTFT mean", "s"), Column("p99", "s"), Column("TPOT mean", "s")),
        *(Column("p99", "s"), Column("within limits", "share"), Column("tokens/s", "count"), Column("replicas")),
        *(Column("busy", "share"), Column("regime")),
    ]
    return Table("Models", columns, rows, most=len(rows))


def _beside(title: str, policies: Answer, fields: Sequence[Field[Answer]]) -> Table:
    """A column for each policy, a row for each measure that any has."""
    table = table_of("", list(policies.values()), fields)
    cells: list[list[Cell]] = [[column.name] for column in table.columns]
    for row in table.rows:
        for line, column, value in zip(cells, table.columns, row, strict=True):
            line.append(Number(value, column.unit) if isinstance(value, float | int) else None)
    return Table(title, [Column(""), *(Column(name, "") for name in policies)], cells, most=len(cells), by_row=True)


def _at(*keys: str) -> Callable[[Answer], Cell]:
    """What lies below these keys, if anything does."""

    def cell(answer: Answer) -> Cell:
        for key in keys[:-1]:
            answer = answer[key] or {}
        value: Cell = answer.get(keys[-1])
        return value

    return cell


def _times(key: str, name: str, marks: Sequence[str]) -> list[Field[Answer]]:
    """Rows of a latency, one a mark such as p99."""
    return [(f"{name} {mark}".strip(), "s", _at(key, mark)) for mark in marks]


def _by_latency(policies: Answer) -> list[str]:
    """Names of those that answered anything, soonest first."""
    done = [name for name, policy in policies.items() if policy["e2e_s"] and policy["e2e_s"]["mean"] is not None]
    return sorted(done, key=lambda name: policies[name]["e2e_s"]["mean"])


def policies_document(answer: Answer) -> Document:
    """Batching policies and routers, or ways to share GPUs, side by side. `answer`: what became of all, by policy."""
    policies = answer["policies"]
    fields: list[Field[Answer]] = [
        *_times("ttft_s", "first token", ("mean", "p99")),
        *_times("tpot_s", "per token", ("mean", "p99")),
        *_times("e2e_s", "end to end", ("mean", "p99")),
        *(("tokens/s", "", "output_tokens_per_s"), ("preemptions", "count", "preemptions")),
        ("within limits", "share", "slo_attainment"),
    ]
    best = next(iter(_by_latency(policies)), "")
    verdict = f"{best} answers soonest." if best else "No request is answered."
    views: list[View] = [Headline(verdict), _beside("Policies", policies, fields)]
    if shared := {name: policy for name, policy in policies.items() if "models" in policy}:
        models = next(iter(shared.values()))["models"]
        each: list[Field[Answer]] = [(model, "", _at("models", model, "requests_per_s")) for model in models]
        views += [_beside("Requests/s by model", shared, each)]
        views += [Notes("GPUs", [f"{name}: {policy['placement']}" for name, policy in shared.items()])]
    return Document("batching policies", "Policies side by side", views)


def spot_serving_document(answer: Answer) -> Document:
    """A model on machines that are taken away. `answer`: `SpotServing.to_dict()`."""
    spec, machines, policies = answer["spec"], answer["spec"]["machines"], answer["policies"]
    fields: list[Field[Answer]] = [
        *(("answered", "count", "finished"), *_times("e2e_s", "", QUANTILES), ("tokens/s", "", "output_tokens_per_s")),
        ("changes", "count", lambda policy: policy["reconfigurations"] + policy["replicas_loaded"]),
        *(("paused", "s", "paused_s"), ("computed again", "count", "recomputed_tokens")),
        ("GPU hours", "", lambda policy: policy["gpu_seconds"] / 3600),
        *(("cost", "$", "cost"), ("per million tokens", "$", "cost_per_million_output_tokens")),
    ]
    done = _by_latency(policies)
    headline = Headline("No request was answered.", tone="bad")
    if done:
        mean, *rest = (Number(policies[name]["e2e_s"]["mean"], "s") for name in done)
        others = "".join(f", {name} {text_of(number)}" for name, number in zip(done[1:], rest, strict=True))
        verdict = f"{done[0]} answers soonest: {text_of(mean)} in the mean{others}."
        headline = Headline(verdict, "good")
    title = f"{spec['model']} on {machines['least']} to {machines['most']} spot machines"
    under = (
        f"{spec['gpus_per_machine']} {spec['gpu']} each; {spec['machines_come']} come, {spec['machines_go']} go,"
        f" noticed {spec['notice_s']:g} s before; {_tokens(spec)}"
    )
    views: list[View] = [headline, _beside("Policies", policies, fields)]
    return Document("a model served on spot machines", title, views, subtitle=under)


def scaled_document(answer: Answer) -> Document:
    """Replicas that come and go with their sessions. `answer`: `Scaled.to_dict()`."""
    spec, policies = answer["spec"], answer["policies"]
    fields: list[Field[Answer]] = [
        *(("answered after, mean", "s", "mean_s"), ("answered after, p99", "s", "p99_s"), ("waited", "s", "waited_s")),
        *(("slower than promised", "share", "late"), ("replica hours", "", "replica_hours")),
        *(("replicas over the ideal", "", "over_ideal"), ("most replicas", "count", "most_replicas")),
        *(("sessions moved", "count", "moves"), ("moved", "B", "moved_bytes"), ("longest stop", "s", "longest_stop_s")),
    ]
    best = min(policies, key=lambda name: (policies[name]["late"], policies[name]["replica_hours"]))
    late = Number(policies[best]["late"], "share")
    even = [name for name, policy in policies.items() if policy["late"] == policies[best]["late"]]
    verdict = f"{best} keeps the promise best: {text_of(late)} of the sessions are slower."
    if len(even) > 1:
        soonest = min(even, key=lambda name: policies[name]["mean_s"])
        verdict = (
            f"{', '.join(even)} keep the promise alike, {text_of(late)} of the sessions are slower: {best} takes the"
        )
        verdict += " fewest replica hours"
        if policies[soonest]["mean_s"] < policies[best]["mean_s"]:
            times = [text_of(Number(policies[name]["mean_s"], "s")) for name in (soonest, best)]
            verdict += f", {soonest} answers soonest ({times[0]} on average, {best} {times[1]})"
        verdict += "."
    title = f"{spec['model']}, {spec['sessions']:,} sessions on up to {spec['most_replicas']} replicas"
    views: list[View] = [Headline(verdict), _beside("Policies", policies, fields)]
    return Document("replicas with sessions", title, views)


def weight_pool_document(answer: Answer) -> Document:
    """Models whose weights come and go. `answer`: of `run_weight_pool`."""
    spec, systems = answer["spec"], answer["systems"]
    feasible = {name: system for name, system in systems.items() if system["feasible"]}
    fields: list[Field[Answer]] = [
        *(
            *_times("e2e_s", "", QUANTILES),
            ("requests/s", "", "requests_per_s"),
            ("tokens/s", "", "output_tokens_per_s"),
        ),
        *(("computing", "share", "utilisation"), ("loads", "count", "loads")),
        *(("of which from the host", "count", "host_hits"), ("cost", "$", lambda system: system.get("cost"))),
        ("per million tokens", "$", lambda system: system.get("cost_per_million_output_tokens")),
    ]
    best = next(iter(_by_latency(feasible)), None)
    text = (
        "No system is possible."
        if best is None
        else f"{best}: {text_of(feasible[best]['e2e_s']['mean'], 's')} in the mean."
    )
    lines = [f"{name}: {system['reason']}" for name, system in systems.items() if not system["feasible"]]
    views: list[View] = [Headline(text, tone="good" if best else "bad")]
    views += [_beside("Systems", feasible, fields), Notes("Not possible", lines, "warn")]
    title = f"{spec['models']} models on {spec['gpus']} {spec['gpu']}"
    under = f"{spec['weight_bytes'] / 1e9:,.0f} GB of weights; {_tokens(spec)}"
    return Document("a pool of weights", title, views, subtitle=under)


def _tokens(spec: Answer) -> str:
    return f"{spec['requests']:,} requests, {spec['prompt']} tokens in and {spec['output']} out"


def real_document(answer: Answer) -> Document:
    """A real engine against its prediction. `answer`: `Compared.to_dict()`."""
    measures = (("ttft_s", "mean"), ("ttft_s", "p99"), ("tpot_s", "mean"), ("e2e_s", "mean"), ("e2e_s", "p99"))
    rows: list[tuple[Cell, ...]] = []
    errors = []
    for policy, both in answer["policies"].items():
        measured, predicted = both["measured"], both["predicted"]
        for key, what in measures:
            a, b = measured[key][what], predicted[key][what]
            errors.append(abs(b / a - 1))
            rows.append((policy, f"{key[:-2].upper()} {what}", text_of(a, "s"), text_of(b, "s"), b / a - 1))
        a, b = measured["output_tokens_per_s"], predicted["output_tokens_per_s"]
        rows.append((policy, "tokens/s", f"{a:.0f}", f"{b:.0f}", b / a - 1))
        rows.append((policy, "steps", f"{measured['steps']}", f"{predicted['steps']}", None))
        rows.append((policy, "blocks swapped", f"{both['swapped_blocks']}", "", None))
        rows.append((policy, "machine", text_of(both["machine_slower"], "x"), "", None))
    columns = (Column("policy"), Column("measure"), *(Column(name, "") for name in ("measured", "predicted")))
    off = text_of(sum(errors) / max(len(errors), 1), "share")
    views: list[View] = [Headline(f"Predicted latencies are {off} off what was measured, in the mean.")]
    under = (
        f"{answer['requests']:,} requests, {answer['rate_per_s']:.3g} per second; {answer['steps_measured']} steps"
        f" measured, fitted to {answer['step_fit_error']:.1%}"
    )
    table = Table("Measured and predicted", (*columns, Column("off", "change")), rows, most=len(rows))
    return Document("a real engine", f"tiny-llama on {answer['device']}", [*views, table], subtitle=under)
