"""How the servers of measured rows were started, and which prompts they were sent, as their sources publish it.

The facts, where each was read, and what their conditions mean: `launches.yaml`. Here they are looked up and made rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from windtunnel.evidence.accuracy.serving.recipes import drafted_not_yet
from windtunnel.evidence.accuracy.serving.rows import ServingRow, engine_named, gpu_of
from windtunnel.files.document import read_mapping
from windtunnel.files.table import read_table
from windtunnel.physics.hardware.gpu import Gpu
from windtunnel.studies.serving.build import Engine
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.profile import Profile, order_of
from windtunnel.studies.serving.replica.rules import Rules, in_tokens, looks_every

Facts = Mapping[str, Any]


@cache
def _published() -> Facts:
    return read_mapping(Path(__file__).with_suffix(".yaml"), "is part of the package: install it again")


def _first(facts: list[Facts], row: ServingRow, **deployment: object) -> Facts:
    """The first entry whose conditions a row and its deployment fulfil. Nothing where they fulfil none."""
    return next((fact for fact in facts if _holds(fact.get("when", {}), row, deployment)), {})


def _holds(when: Facts, row: ServingRow, facts: Facts) -> bool:
    return all(_holds_one(name, wanted, row, facts) for name, wanted in when.items())


def _holds_one(name: str, wanted: Any, row: ServingRow, facts: Facts) -> bool:
    if name == "gpu":
        return row.text("gpu").lower().startswith(tuple(wanted))
    if name == "generation":
        return gpu_of(row.text("gpu"), 1).gpu.generation.startswith(tuple(wanted))
    if name in ("source", "framework"):
        return str(wanted) in row.text(name)
    if name == "model":
        return str(wanted) in _model(row)
    if name == "four_bits":
        return ("4" in row.text("precision")) is wanted
    if name == "lengths":
        return bool([row.whole_number("isl", 1), row.whole_number("osl", 1)] == wanted)
    if name == "in_flight":
        return bool(wanted[0] <= row.whole_number("concurrency", 1) <= wanted[1])
    if name == "since":
        release = facts.get("release", engine_named(row).partition("-")[2])
        return order_of(str(release)) >= order_of(str(wanted))
    if name == "gpus":
        return bool(facts[name] <= wanted)
    return bool(facts[name] == wanted)


def _model(row: ServingRow) -> str:
    return (row.text("model") + row.text("model_family")).lower()


def engine_of_row(row: ServingRow, engine: Engine) -> Engine:
    """An engine that serves both phases, started as the row's source publishes it."""
    if of_configurator(row):
        rules = _configurators(row, engine)
    elif _inferencex_deepseek(row):
        rules = _inferencex(row, engine)
    elif _inferencex_other(row):
        rules = _rules_of_others(row, engine)
    else:
        return engine
    return replace(engine, rules=rules)


def deployed(row: ServingRow, deployment: Deployment) -> Deployment:
    """A deployment with what has to be known before its memory is laid out: as its source starts it."""
    if host := _first(_published()["hosts"], row):
        deployment = replace(deployment, host_cpus=host["cpus"])
    if _inferencex_other(row):
        return _others_deployed(row, deployment)
    if not _inferencex_deepseek(row):
        return deployment
    facts = _published()["deepseek"]
    conditions = {"engine": _framework(deployment), "tp": deployment.tp, "ranks": deployment.attn_dp > 1}
    memory = _first(facts["memory"], row, **conditions)
    if not memory:
        return deployment
    kv = _first(facts["cache"], row, **conditions).get("kv")
    deployment = replace(deployment, gpu_memory_utilization=memory["share"], kv=deployment.kv or kv)
    if conditions["engine"] == "sglang" or not taken_to_draft(row):
        return deployment
    drafts = _first(facts["drafts"], row, **conditions)
    return replace(deployment, speculative_tokens=drafts["depth"], acceptance=drafts["kept"])


def pooled(row: ServingRow, deployment: Deployment) -> Deployment:
    """A worker of a pool with the cache that its source's recipe asks for, where the row does not say one."""
    return deployment if deployment.kv is not None else replace(deployment, kv=_of_pools(row, deployment).get("kv"))


def captured_by_pools(row: ServingRow, deployment: Deployment, profile: Profile) -> Profile:
    """A profile with the largest batch that workers of the source's recipe capture, and their all-to-all's buffers."""
    profile = of_source(row, profile)
    pools = _of_pools(row, deployment)
    buffers = _first(_published()["deepseek"]["buffers"], row) if pools else {}
    tokens = buffers.get("tokens", profile.all_to_all_buffer)
    return replace(profile, graph_limit=pools.get("graphs", profile.graph_limit), all_to_all_buffer=tokens)


def _of_pools(row: ServingRow, deployment: Deployment) -> Facts:
    conditions = {"engine": _framework(deployment)}
    return _first(_published()["deepseek"]["pools"], row, **conditions) if _inferencex_deepseek(row) else {}


def as_its_recipe(row: ServingRow) -> ServingRow:
    """A row with the columns of its published recipe, where that says otherwise."""
    conditions = {"engine": row.text("engine"), "apart": row.disaggregated}
    columns = _first(_published()["recipes"], row, **conditions).get("columns")
    return (
        row
        if columns is None
        else ServingRow({**row.fields, **{name: str(column) for name, column in columns.items()}})
    )


def submitted(row: ServingRow, deployment: Deployment) -> Deployment | None:
    """A row of MLPerf as its submission's configuration lays it out; None where none is listed."""
    submission = _submission(row, deployment)
    if not submission:
        return None
    if "tp" in submission:
        deployment = replace(deployment, tp=1, pp=1, attn_dp=1, moe_tp=None, moe_ep=None)
    stated = {name: submission[name] for name in ("tp", "pp", "kv") if name in submission}
    return replace(
        deployment,
        **stated,
        max_num_seqs=submission.get("batch") or row.whole_number("max_num_seqs", 0) or None,
        max_num_batched_tokens=submission["tokens"],
        gpu_memory_utilization=submission.get("share"),
    )


def submitted_profile(row: ServingRow, deployment: Deployment, profile: Profile, gpu: Gpu) -> Profile:
    """A profile of a row of MLPerf, without captured graphs where its submission has none.

    AMD's submissions run attention kernels of their own, in 8 bits (AMD's post on v6.0), not what vLLM runs by itself.
    """
    captures = _submission(row, deployment).get("graphs", True)
    used = of_source(row, profile if captures else profile.ungraphed(gpu))
    return replace(used.on(gpu), by_gpu=(), prefill_attention_factor=1.0) if gpu.vendor == "amd" else used


def submitted_rules(row: ServingRow, deployment: Deployment, rules: Rules) -> Rules:
    """Rules of a row of MLPerf: no prefixes; NVIDIA's harness asks TensorRT-LLM to fill the cache and to evict."""
    rules = replace(rules, prefix_caching=False)
    if not deployment.engine.startswith("trtllm"):
        return rules
    waits = _submission(row, deployment).get("waits", rules.gather_steps)
    return replace(rules, reserve="prompt", gather_steps=waits)


def _submission(row: ServingRow, deployment: Deployment) -> Facts:
    scenario, tokens = row.text("kind").removeprefix("mlperf_"), row.text("max_num_batched_tokens")
    conditions = {"engine": _framework(deployment), "scenario": scenario, "tokens": tokens}
    return _first(_published()["mlperf"], row, gpus=row.whole_number("gpus", deployment.gpus), **conditions)


def _framework(deployment: Deployment) -> str:
    return next((name for name in ("sglang", "trtllm") if deployment.engine.startswith(name)), "vllm")


def taken_to_draft(row: ServingRow) -> bool:
    """Whether a run of DeepSeek-R1 on TensorRT-LLM drafted: as its column says; else as runs of its release did."""
    if row.text("spec"):
        return row.text("spec") == "mtp"
    if drafted_not_yet(row):
        return False
    release = order_of(engine_named(row).partition("-")[2])
    spans = _published()["deepseek"]["drafted_releases"]
    return any(order_of(first) <= release < order_of(after) for first, after in spans)


def drafts_unlisted(row: ServingRow) -> tuple[int, float]:
    """Tokens drafted, and the chance that one is kept, of a run that drafted and is in no published list."""
    drafts = _first(_published()["deepseek"]["drafts_unlisted"], row, engine=row.text("engine"))
    return drafts["depth"], drafts["kept"]


def _others_deployed(row: ServingRow, deployment: Deployment) -> Deployment:
    facts = _published()["others"]
    kv = _first(facts["cache"], row)["kv"]
    if deployment.engine.startswith("trtllm"):
        trtllm = _first(facts["trtllm"], row)
        longest = row.whole_number("isl", 1) + row.whole_number("osl", 1) + facts["spare_length"]
        tokens = trtllm.get("tokens", longest)
        return replace(deployment, kv=kv, gpu_memory_utilization=trtllm.get("memory"), max_num_batched_tokens=tokens)
    tokens = _first(facts["vllm"], row)["tokens"]
    return replace(deployment, kv=kv, max_num_batched_tokens=tokens, prefix_caching=False)


def of_source(row: ServingRow, profile: Profile) -> Profile:
    """A profile that says whether its constants rest on runs of the row's source, whose scripts give limits."""
    known = row.text("source").startswith(tuple(_published()["fitted"]))
    return replace(profile, fitted_source=known, draft_seqs=0 if known else profile.draft_seqs)


def planned_ahead(row: ServingRow, profile: Profile) -> Profile:
    """vLLM's profile where a launch script asks that the next step be planned while one runs."""
    profile = of_source(row, profile)
    if not _inferencex_other(row) or profile.framework != "vllm":
        return profile
    limit = _first(_published()["others"]["vllm"], row).get("graphs", profile.graph_limit)
    return replace(profile, asynchronous=True, delay_steps=1, graph_limit=limit)


def held_back(row: ServingRow) -> int:
    """Steps after a prompt that was computed elsewhere until the client gets its first token."""
    if not row.disaggregated or row.text("engine").lower() != "sglang" or of_configurator(row):
        return 0
    steps: int = _published()["deepseek"]["held_back"].get(row.text("gpu").lower().partition("_")[0], 0)
    return steps


def decode_limit(row: ServingRow, deployment: Deployment, workers: int) -> tuple[int | None, int]:
    """(sequences that a rank of TensorRT-LLM's decode workers takes at once, tokens drafted); None and 0: not known.

    As InferenceX lists it for DeepSeek-R1 (`decode_limits.csv`, from the settings and recipes' names in
    nvidia-master.yaml, 1fc5d73c, 8eec0d4e, 843c6254). Lists send a little more than that (1.05 to 1.3 times): the rest
    waits. A point that is not listed: the largest power of two, or one and a half times one, at or below the share of
    an attention rank, as all 16 of DeepSeek's settings of 1fc5d73c would have it, and 13 of 15 of gpt-oss.
    """
    if not deployment.engine.startswith("trtllm"):
        return None, 0
    concurrency, drafts = row.whole_number("concurrency", 1), row.text("spec") == "mtp"
    ranks = deployment.attn_dp > 1
    layout = f"{'dp' if ranks else 'tp'}{deployment.gpus}"
    if row.text("model_family") == "deepseek-v3":
        precision, gpu = "fp4" if "4" in row.text("precision") else "fp8", row.text("gpu").partition("_")[0]
        lengths = row.whole_number("isl", 1), row.whole_number("osl", 1)
        for drafted, batch in _limits().get((gpu, precision, *lengths, workers, layout, concurrency), ()):
            if (drafted > 0) == drafts:
                return batch, drafted
    share = concurrency // (workers * deployment.attn_dp)
    if not ranks or share < 1:
        return None, 0
    power: int = 1 << share.bit_length() - 1
    return power * 3 // 2 if power * 3 // 2 <= share else power, 0


@cache
def _limits() -> Mapping[tuple[object, ...], list[tuple[int, int]]]:
    """(tokens drafted, batch) by point."""
    limits: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for _, line in read_table(Path(__file__).with_name("decode_limits.csv")).rows():
        lengths = int(line["isl"]), int(line["osl"])
        for concurrency in line["concurrency"].split():
            point = (line["gpu"], line["precision"], *lengths, int(line["workers"]), line["layout"], int(concurrency))
            limits.setdefault(point, []).append((int(line["drafted"]), int(line["batch"])))
    return limits


def prompt_tokens(row: ServingRow) -> int:
    """Tokens of a prompt as the server counts them."""
    tokens = row.whole_number("isl", 1)
    misread = _published()["deepseek"]["misread"]
    if not _inferencex_deepseek(row) or row.text("engine") != "sglang" or row.disaggregated:
        return tokens
    if not row.text("measured") or row.text("measured") > misread["until"]:
        return tokens
    since = row.text("gpu").startswith(tuple(misread["always"])) or _holds_one("since", misread["since"], row, {})
    return round(tokens * (misread["got"] / misread["asked"])) if since else tokens


def replayed_facts(row: ServingRow) -> Facts:
    """What is published of the sessions that a row's client replayed."""
    return _first(_published()["sessions"], row)


def of_configurator(row: ServingRow) -> bool:
    """Whether a row is of a campaign."""
    return row.text("source").startswith("campaign/")


def repeats(row: ServingRow) -> bool:
    """Whether the client sent the same prompts again and again."""
    isl = row.whole_number("isl", 1)
    return of_configurator(row) and isl & (isl - 1) != 0


def turnaround_s(row: ServingRow) -> float:
    """What a row's client takes from an answer to the slot's next request, in the mean."""
    seconds: float = _published()["configurator"]["turnaround_s"] if of_configurator(row) else 0.0
    return seconds


def sent_again() -> tuple[int, int]:
    """How many prompts a client has that sends them again and again, and how often each slot sends one."""
    facts = _published()["configurator"]
    return facts["prompts"], facts["waves"]


def _inferencex_deepseek(row: ServingRow) -> bool:
    return row.text("client") == "closed" and row.text("model_family").startswith("deepseek")


def _inferencex_other(row: ServingRow) -> bool:
    name = _model(row)
    return row.text("client") == "closed" and ("gpt-oss" in name or ("llama" in name and "70b" in name))


def _configurators(row: ServingRow, engine: Engine) -> Rules:
    facts, profile = _published()["configurator"], engine.profile
    changes = dict(_first(facts["rules"], row, engine=profile.framework, release=profile.release))
    changes.pop("when", None)
    beside = facts["batch"] + facts["spare"] if repeats(row) else row.whole_number("concurrency", 1)
    tokens = row.whole_number("isl", 1) + beside
    rules = _holding(engine.rules, engine, tokens) if changes.pop("tokens") else engine.rules
    return replace(rules, **changes)


def _inferencex(row: ServingRow, engine: Engine) -> Rules:
    facts = _published()["deepseek"]
    rules, concurrency, isl = engine.rules, row.whole_number("concurrency", 1), row.whole_number("isl", 1)
    ranks, drafted = engine.deployment.attn_dp, engine.times.speculative[0]
    if engine.profile.engine == "sglang":
        sglang = _first(facts["sglang"], row, drafted=drafted > 0, tp=engine.deployment.tp)
        steps = looks_every(sglang["looks"], engine.times.tokens_per_step)
        seqs = min(rules.max_num_seqs, (sglang["requests"] or rules.max_num_seqs) * ranks)
        return replace(_holding(rules, engine, sglang["chunk"]), receive_steps=steps, max_num_seqs=seqs)
    if engine.profile.framework == "trtllm":
        trtllm = facts["trtllm"]
        budget = max(trtllm["least_tokens"], math.ceil((concurrency + isl + trtllm["spare"]) / 64) * 64)
        if drafted:
            batch = max(1, concurrency // ranks)
            budget = math.ceil(((drafted + 1) * batch + isl + trtllm["spare"]) / 64) * 64
            rules = replace(rules, max_num_seqs=batch * ranks)
        waits = in_tokens(trtllm["ranks_wait_steps"], engine.times.tokens_per_step)
        rules = replace(_holding(rules, engine, budget), chunked=False, gather_steps=waits if ranks > 1 else 0)
        rules = _gathering(rules, _first(facts["trtllm_waits"], row, ranks=ranks > 1), budget, isl)
    return rules


def _rules_of_others(row: ServingRow, engine: Engine) -> Rules:
    rules = replace(engine.rules, prefix_caching=False)
    if engine.profile.framework != "trtllm":
        return rules
    rules = replace(rules, chunked=False)
    if "gpt-oss" in _model(row):
        blackwell = row.text("gpu").lower().startswith(("b", "gb"))  # attention ranks wait for each other there alone
        return rules if blackwell else replace(rules, ranks=1, gather_steps=0)
    waits = _first(_published()["others"]["trtllm_waits"], row, gpus=engine.gpus)
    return _gathering(rules, waits, rules.longest_chunk, row.whole_number("isl", 1))


def _gathering(rules: Rules, waits: Facts, tokens: int, isl: int) -> Rules:
    """Prompts wait until there are as many as a share of a step's tokens has, or so many steps."""
    if not waits:
        return rules
    return replace(rules, gather=math.ceil(waits["share"] * tokens / isl), gather_steps=waits["steps"])


def _holding(rules: Rules, engine: Engine, tokens: int) -> Rules:
    """With so many tokens in a step of one attention rank."""
    return replace(rules, token_budget=tokens * engine.deployment.attn_dp, longest_chunk=tokens)
