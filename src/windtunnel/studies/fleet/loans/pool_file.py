"""The file that says what a serving pool is: model, servers, request stream, limits. docs/fleet-beyond.md has one.

How the pool keeps its promises at each rate is the serving study's, handed to the fleet (`loans_of`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.document import read_mapping
from windtunnel.files.table import read_table
from windtunnel.physics.hardware.catalogue import parse_cluster
from windtunnel.physics.model.catalogue import load_model
from windtunnel.studies.fleet.fields import known_keys, number
from windtunnel.studies.fleet.loans.pool import Attainment, Loans, ServingPool
from windtunnel.studies.serving import Deployment, ServingResult, Workload, engine_of, serve_with
from windtunnel.studies.serving.attainment import attained
from windtunnel.studies.serving.workload.lengths import arrivals, lengths
from windtunnel.units import parse_time

DEPLOYMENT = ("engine", "tp", "pp", "attn_dp", "weights", "kv", "max_num_seqs", "max_num_batched_tokens")
KEYS = {"model", "gpu", "servers", "replicas", "gpus_per_server", "requests", "slo", "attain", "lend", *DEPLOYMENT}
REQUESTS = {"prompt", "output", "rate", "stream", "length_ratio", "cv"}
PROBED = 4000  # that each rate is measured on: attainment to a quarter of a per mille
LEND = {"headroom", "interval", "lookback", "load"}


@dataclass(frozen=True)
class PoolFile:
    """What the file says; servers, not yet what one of them keeps up."""

    model: str
    gpu: str
    deployment: Mapping[str, Any]
    servers: int
    gpus_per_server: int
    replica_gpus: int
    prompt: int
    output: int
    length_ratio: float
    cv: float
    times_s: tuple[float, ...]
    rates: tuple[float, ...]  # requests per second; servers, where `in_servers`
    in_servers: bool
    slo_s: Mapping[str, float]  # ttft_s, tpot_s
    promise: float
    headroom: float
    interval_s: float
    lookback_s: float
    load_s: float

    def pool(self, replica_rate_per_s: float, attainment: Attainment, begin_s: float, end_s: float) -> ServingPool:
        """The pool over a stretch of time. `replica_rate_per_s`, `attainment(rate)`: of one replica."""
        each = self.gpus_per_server // self.replica_gpus  # whole replicas of a server
        scale = replica_rate_per_s * each if self.in_servers else 1.0
        gap = self.times_s[-1] - self.times_s[-2] if len(self.times_s) > 1 else math.inf
        lasts = self.times_s[-1] - self.times_s[0] + gap
        times: list[float] = []
        rates: list[float] = []
        rounds = 1 if math.isinf(lasts) else math.ceil((end_s - begin_s) / lasts) or 1
        for turn in range(rounds):
            shift = begin_s - self.times_s[0] + (turn * lasts if turn else 0.0)
            times.extend(time + shift for time in self.times_s)
            rates.extend(rate * scale for rate in self.rates)
        return ServingPool(
            self.servers,
            times,
            rates,
            replica_rate_per_s * each,
            lambda rate: attainment(rate / each),
            self.headroom,
            self.interval_s,
            self.lookback_s,
            self.load_s,
            self.gpus_per_server,
        )


def read_pool(path: Path) -> PoolFile:
    """Raises InputFileError or SpecError."""
    data = read_mapping(path, "give model, servers, requests and slo")
    where = str(path)
    known_keys(data, KEYS, where)
    requests, limits, lend = (_part(data, name, where) for name in ("requests", "slo", "lend"))
    known_keys(requests, REQUESTS, where)
    known_keys(lend, LEND, where)
    known_keys(limits, {"ttft", "tpot"}, where)
    if not isinstance(data.get("model"), str):
        raise SpecError("model", data.get("model"), "name the model that is served", where)
    if not limits:
        raise SpecError("slo", None, "give limits, such as slo: {ttft: 1 s, tpot: 30 ms}", where)
    per_server = _whole(data, "gpus_per_server", where, 8)
    deployment = {key: data[key] for key in DEPLOYMENT if key in data}
    replica_gpus = math.prod(_whole(data, key, where, 1) for key in ("tp", "pp", "attn_dp"))
    if replica_gpus > per_server:
        raise SpecError("tp", data.get("tp"), f"a replica must fit on a server of {per_server} GPUs to be lent", where)
    if "servers" in data:
        servers = _whole(data, "servers", where)
    else:
        servers = -(-_whole(data, "replicas", where) * replica_gpus // per_server)
    times, rates, in_servers = _stream(requests, path)
    promise = number(data, "attain", where, 0.99)
    if not 0.0 < promise <= 1.0:
        raise SpecError("attain", promise, "give a share of the requests, above 0 and at most 1, such as 0.99", where)
    return PoolFile(
        model=data["model"],
        gpu=str(data.get("gpu", "h100-sxm")),
        deployment=deployment,
        servers=servers,
        gpus_per_server=per_server,
        replica_gpus=replica_gpus,
        prompt=_whole(requests, "prompt", where),
        output=_whole(requests, "output", where),
        length_ratio=number(requests, "length_ratio", where, 1.0),
        cv=number(requests, "cv", where, 1.0),
        times_s=times,
        rates=rates,
        in_servers=in_servers,
        slo_s={f"{name}_s": parse_time(limits[name], name, where) for name in limits},
        promise=promise,
        headroom=number(lend, "headroom", where, 0.1),
        interval_s=_positive(lend, "interval", where, 300.0),
        lookback_s=parse_time(lend.get("lookback", 900.0), "lookback", where),
        load_s=parse_time(lend.get("load", 60.0), "load", where),
    )


def _stream(entry: Mapping[str, object], path: Path) -> tuple[tuple[float, ...], tuple[float, ...], bool]:
    """Times, rates, and whether these are in servers."""
    if "stream" not in entry:
        return (0.0,), (number(entry, "rate", str(path)),), False
    file = path.parent / str(entry["stream"])
    table = read_table(file, "give time_s and rate_per_s")
    column = next((name for name in ("rate_per_s", "servers_needed") if table.has(name)), None)
    if column is None or not table.has("time_s") or not len(table):
        raise InputFileError(file, "has no time_s and rate_per_s", "name these columns, and give a row at least")
    times = table.numbers("time_s", needed=True, least=None)
    rates = table.numbers(column, needed=True)
    falls = np.flatnonzero(np.diff(times) <= 0)
    if len(falls):
        table.refuse(int(falls[0]) + 1, "time_s", "does not rise")
    return tuple(times.tolist()), tuple(rates.tolist()), column == "servers_needed"


def _part(data: Mapping[str, object], name: str, where: str) -> Mapping[str, object]:
    part = data.get(name, {})
    if not isinstance(part, Mapping):
        raise SpecError(name, part, "give a mapping", where)
    return part


def _whole(data: Mapping[str, object], name: str, where: str, default: int | None = None) -> int:
    value = data.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10_000_000:
        raise SpecError(name, value, "give a whole number of at least 1", where)
    return value


def _positive(data: Mapping[str, object], name: str, where: str, default: float) -> float:
    value = parse_time(data.get(name, default), name, where)
    if value < 1.0:
        raise SpecError(name, data.get(name), "give at least 1 s", where)
    return value


def loans_of(serving: Path | None, elastic: float, seed: int) -> Loans:
    """How the site lends and scales. Raises UserError."""
    if serving is None:
        return Loans(elastic=elastic)
    pool_file = read_pool(serving)
    machine = parse_cluster(f"{pool_file.gpu}:{pool_file.gpus_per_server}")
    engine = engine_of(load_model(pool_file.model), machine, Deployment(**pool_file.deployment))
    prompts, outputs = lengths(PROBED, pool_file.prompt, pool_file.output, pool_file.length_ratio, seed)
    load = Workload(prompts, outputs, arrivals(PROBED, 1.0, pool_file.cv, seed))

    def run(workload: Workload) -> ServingResult:
        return serve_with(engine, workload, slo=pool_file.slo_s)

    best = attained(run, load, pool_file.promise)
    return Loans(lambda begin_s, end_s: pool_file.pool(best.goodput_per_s, best.at, begin_s, end_s), elastic)
