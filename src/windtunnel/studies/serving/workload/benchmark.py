"""What a load generator measured of a server: `vllm bench serve`, SGLang's `bench_serving`, AIPerf and GenAI-Perf.

Read is the JSON that they save (of JSON lines the last), or what the first two print. Times per request are means over
requests, as here. What ran, and how, they do not say: that is the question's.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.bytes import read_text
from windtunnel.questions.asked.serve.parts import ClosedLoad, Lengths, OpenLoad, Trace, TraceTimes
from windtunnel.studies.serving.workload.lengths import arrivals, lengths
from windtunnel.studies.serving.workload.requests import Ints, Workload

REMEDY = "give the JSON that vllm bench serve, SGLang's bench_serving or AIPerf saves, or what the first two print"
PRINTED = {  # what is printed, as the JSON calls it
    "successful requests": "completed",
    "maximum request concurrency": "max_concurrency",
    "max request concurrency": "max_concurrency",
    "request rate configured (rps)": "request_rate",
    "traffic request rate": "request_rate",
    "total input tokens": "total_input_tokens",
    "total generated tokens": "total_output_tokens",
    "request throughput (req/s)": "request_throughput",
    "output token throughput (tok/s)": "output_throughput",
    "mean ttft (ms)": "mean_ttft_ms",
    "mean tpot (ms)": "mean_tpot_ms",
}
AIPERF = {  # its metrics, each with `avg` and `unit`
    "request_count": "completed",
    "input_sequence_length": "mean_input",
    "output_sequence_length": "mean_output",
    "request_throughput": "request_throughput",
    "output_token_throughput": "output_throughput",
    "time_to_first_token": "mean_ttft_ms",
    "inter_token_latency": "mean_tpot_ms",
}
LOADS = (("loadgen",), (), ("perf_analyzer", "stimulus"))  # where AIPerf says it, GenAI-Perf's early and late releases
MILLISECONDS = {"ns": 1e-6, "us": 1e-3, "s": 1e3, "sec": 1e3, "seconds": 1e3}  # of a unit; of others one
HELD_BACK = 0.95  # of the rate: below it, the limit of requests in flight is what paces
REQUESTS_MOST, NUMBER_MOST = 1_000_000, 1e12


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Lengths, load and figures of one run. `rate_per_s` and `concurrency` are None where the file does not say."""

    prompts: Ints
    outputs: Ints
    rate_per_s: float | None  # infinite where all were sent at once
    concurrency: int | None
    cv: float
    tpot_s: float | None
    ttft_s: float | None
    output_tokens_per_s: float | None

    def workload(self, requests: Lengths | Trace, load: OpenLoad | ClosedLoad | TraceTimes, seed: int) -> Workload:
        """The requests of the run; lengths and load that the question states win. Raises SpecError."""
        if isinstance(requests, Trace):
            raise SpecError("workload", requests.workload, "bench has lengths of its own: give one of the two")
        count = requests.requests or len(self.prompts)
        prompts, outputs = (np.resize(tokens, count) for tokens in (self.prompts, self.outputs))
        if requests.prompt is not None or requests.output is not None:
            prompt, output = (round(float(tokens.mean())) for tokens in (self.prompts, self.outputs))
            stated = requests.prompt or prompt, requests.output or output
            prompts, outputs = lengths(count, *stated, requests.length_ratio, seed)
        name = f"{prompts.mean():,.0f} in, {outputs.mean():,.0f} out, as benchmarked"
        if isinstance(load, ClosedLoad):
            return Workload(prompts, outputs, None, load.concurrency, name=name)
        if isinstance(load, OpenLoad):
            return Workload(prompts, outputs, arrivals(count, load.rate, load.cv, seed), name=name)
        if self.concurrency is not None:
            return Workload(prompts, outputs, None, self.concurrency, name=name)
        if self.rate_per_s is None:
            raise SpecError("rate", None, "nor is a concurrency: add --rate R or --concurrency C")
        if math.isinf(self.rate_per_s):
            return Workload(prompts, outputs, np.zeros(count, dtype=np.int64), name=name)
        return Workload(prompts, outputs, arrivals(count, self.rate_per_s, self.cv, seed), name=name)


def read_benchmark(path: str | Path) -> Benchmark:
    """What a load generator saved or printed. Raises InputFileError."""
    text = read_text(path, REMEDY)
    fields = _printed(text) if re.search(r"^\W*serving benchmark result", text, re.I | re.M) else _saved(path, text)
    lists = {key: fields.get(key) for key in ("input_lens", "output_lens")}
    if all(isinstance(value, Sequence) and not isinstance(value, str) and value for value in lists.values()):
        prompts, outputs = (_whole(path, key, value) for key, value in lists.items())
        if len(prompts) != len(outputs):
            raise InputFileError(path, f"has {len(prompts)} input_lens and {len(outputs)} output_lens", REMEDY)
        is_answered = outputs > 0  # a request that failed has no answer
        prompts, outputs = np.maximum(prompts[is_answered], 1), outputs[is_answered]
    else:
        completed = _number(path, fields, "completed")
        if completed is None or not 1 <= completed <= REQUESTS_MOST:
            raise InputFileError(path, f"says of {completed} completed requests, not of 1 to {REQUESTS_MOST:,}", REMEDY)
        means = [_number(path, fields, f"mean_{way}") for way in ("input", "output")]
        totals = [_number(path, fields, f"total_{way}_tokens") for way in ("input", "output")]
        if None in means and None in totals:
            raise InputFileError(path, "does not say how many tokens went in and out", REMEDY)
        sizes = [
            mean if mean is not None else (total or 0) / completed for mean, total in zip(means, totals, strict=True)
        ]
        prompts, outputs = (np.full(int(completed), max(1, round(size)), dtype=np.int64) for size in sizes)
    if len(prompts) == 0:
        raise InputFileError(path, "holds no answered request", REMEDY)
    rate, concurrency = (_number(path, fields, key) for key in ("request_rate", "max_concurrency"))
    if concurrency and concurrency < 1:
        raise InputFileError(path, f"max_concurrency is '{concurrency:g}'", REMEDY)
    burstiness, throughput = (_number(path, fields, key) for key in ("burstiness", "request_throughput"))
    if rate is not None and concurrency and throughput and throughput >= HELD_BACK * rate:
        concurrency = None
    ttft, tpot = (_number(path, fields, f"mean_{name}_ms") for name in ("ttft", "tpot"))
    return Benchmark(
        prompts, outputs, rate, int(concurrency) if concurrency else None,
        1.0 if not burstiness else burstiness**-0.5,  # vLLM's is the shape of the Gamma law
        tpot / 1e3 if tpot else None, ttft / 1e3 if ttft else None, _number(path, fields, "output_throughput"),
    )  # fmt: skip


def _printed(text: str) -> Mapping[str, object]:
    lines = (line.rpartition(":") for line in text.splitlines())
    return {PRINTED[key]: value.strip() for name, _, value in lines if (key := name.strip().lower()) in PRINTED}


def _saved(path: str | Path, text: str) -> Mapping[str, object]:
    for part in (text, text.strip().rpartition("\n")[2]):
        try:
            fields = json.loads(part)
        except (ValueError, RecursionError):
            continue
        if isinstance(fields, Mapping):
            return _aiperf(fields) if "time_to_first_token" in fields else fields
    raise InputFileError(path, "is no result of a benchmark", REMEDY)


def _aiperf(document: Mapping[str, object]) -> Mapping[str, object]:
    fields: dict[str, object] = {}
    for metric, name in AIPERF.items():
        entry = document.get(metric)
        if isinstance(entry, Mapping):
            scale = MILLISECONDS.get(str(entry.get("unit")), 1.0) if name.endswith("_ms") else 1.0
            average = entry.get("avg")
            fields[name] = average * scale if isinstance(average, int | float) else average
    for place in LOADS:
        load = document.get("input_config") or document.get("config")
        for part in place:
            load = load.get(part) if isinstance(load, Mapping) else None
        if isinstance(load, Mapping):
            limit, rate = load.get("concurrency"), load.get("request_rate")
            fields |= {"max_concurrency": limit, "request_rate": rate} if limit or rate else {}
    return fields


def _number(path: str | Path, fields: Mapping[str, object], key: str) -> float | None:
    """A number of the file, in words too (`inf`); None where it has none. Raises InputFileError."""
    value = fields.get(key)
    if value in (None, "", "not set", "None"):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (OverflowError, TypeError, ValueError):
        number = math.nan
    at_once = key == "request_rate" and number == math.inf
    if not (0 <= number <= NUMBER_MOST or at_once) or isinstance(value, bool):
        raise InputFileError(path, f"{key} is {str(value)[:40]!r}", REMEDY)
    return number


def _whole(path: str | Path, key: str, values: object) -> Ints:
    try:
        array = np.asarray(values)
    except (OverflowError, ValueError):
        array = np.empty(0)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not 0 <= array.min() <= array.max() < 2**31:
        raise InputFileError(path, f"{key} is no list of numbers of tokens", REMEDY)
    return array.astype(np.int64)
