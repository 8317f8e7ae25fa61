"""What `/metrics` says, in Prometheus' text form, under vLLM's names and with vLLM's buckets.

Source of names and buckets: vllm/v1/metrics/loggers.py (0.11 to 0.19). All times are simulated seconds, whatever the
speed of the clock; `windtunnel:lag_seconds` is real time between a token's time and when it was handed on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from windtunnel.studies.serving.emulator.fleet import Gauge

_SHORT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
TTFT = (*_SHORT, 160.0, 640.0, 2560.0)
ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_LONG = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
E2E = (*_LONG, 1920.0, 7680.0)
TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
LAG = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@final
class Histogram:
    """Counts by bucket: `le` the upper edges."""

    __slots__ = ("buckets", "counts", "total")

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(self.buckets, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self.counts)


@final
class Metrics:
    """Counters and histograms of an engine since it started."""

    def __init__(self) -> None:
        self.ttft, self.itl, self.e2e, self.queue = Histogram(TTFT), Histogram(ITL), Histogram(E2E), Histogram(E2E)
        self.prefill, self.decode, self.inference = Histogram(E2E), Histogram(E2E), Histogram(E2E)
        self.per_token = Histogram(ITL)
        self.prompt_sizes, self.output_sizes, self.most_sizes = Histogram(TOKENS), Histogram(TOKENS), Histogram(TOKENS)
        self.lag = Histogram(LAG)
        self.prompt_tokens = self.output_tokens = 0
        self.refused = self.lost = 0
        self.ended = {"stop": 0, "length": 0, "abort": 0, "error": 0}

    def text(self, model: str, gauges: Sequence[Gauge], cache: Mapping[str, object]) -> str:
        """The page. `cache`: what is constant of the KV cache, as labels."""
        name = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines: list[str] = []

        def head(metric: str, kind: str, words: str) -> None:
            lines.extend((f"# HELP {metric} {words}", f"# TYPE {metric} {kind}"))

        def by_engine(metric: str, kind: str, words: str, values: Sequence[float]) -> None:
            head(metric, kind, words)
            for place, value in enumerate(values):
                lines.append(f'{metric}{{engine="{place}",model_name="{name}"}} {value:g}')

        by_engine("vllm:num_requests_running", "gauge", "Requests in execution batches.", [g.running for g in gauges])
        by_engine("vllm:num_requests_waiting", "gauge", "Requests that wait.", [g.waiting for g in gauges])
        by_engine("vllm:kv_cache_usage_perc", "gauge", "KV cache in use, 1 is all of it.", [g.kv_use for g in gauges])
        by_engine("windtunnel:replica_alive", "gauge", "1 where a replica is there.", [int(g.alive) for g in gauges])
        by_engine("vllm:num_preemptions_total", "counter", "Preemptions.", [g.preemptions for g in gauges])
        by_engine(
            "vllm:prefix_cache_queries_total", "counter", "Prompt tokens asked for.", [g.prefix_lookups for g in gauges]
        )
        by_engine("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found.", [g.prefix_hits for g in gauges])
        labels = ",".join(f'{key}="{value}"' for key, value in cache.items())
        head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig.")
        lines.extend(f'vllm:cache_config_info{{{labels},engine="{place}"}} 1' for place in range(len(gauges)))
        for metric, words, value in (
            ("vllm:prompt_tokens_total", "Prompt tokens computed.", self.prompt_tokens),
            ("vllm:generation_tokens_total", "Output tokens.", self.output_tokens),
            ("windtunnel:requests_refused_total", "Requests refused: over-full, or no replica.", self.refused),
            ("windtunnel:requests_lost_total", "Requests whose replica was lost.", self.lost),
        ):
            head(metric, "counter", words)
            lines.append(f'{metric}{{engine="0",model_name="{name}"}} {value}')
        head("vllm:request_success_total", "counter", "Requests by how they ended.")
        for reason, count in self.ended.items():
            lines.append(
                f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="{name}"}} {count}'
            )
        for metric, words, histogram in (
            ("vllm:time_to_first_token_seconds", "Time to first token.", self.ttft),
            ("vllm:inter_token_latency_seconds", "Time between tokens.", self.itl),
            ("vllm:e2e_request_latency_seconds", "From arrival to last token.", self.e2e),
            ("vllm:request_queue_time_seconds", "From arrival to the first step.", self.queue),
            ("vllm:request_prefill_time_seconds", "From the first step to the first token.", self.prefill),
            ("vllm:request_decode_time_seconds", "From the first token to the last.", self.decode),
            ("vllm:request_inference_time_seconds", "From the first step to the last token.", self.inference),
            ("vllm:request_time_per_output_token_seconds", "Time per token after the first.", self.per_token),
            ("vllm:request_params_max_tokens", "Most tokens that finished requests asked for.", self.most_sizes),
            ("vllm:request_prompt_tokens", "Prompt tokens of finished requests.", self.prompt_sizes),
            ("vllm:request_generation_tokens", "Output tokens of finished requests.", self.output_sizes),
            ("windtunnel:lag_seconds", "Real time by which tokens were handed on late.", self.lag),
        ):
            head(metric, "histogram", words)
            below = 0
            for edge, count in zip((*map(str, histogram.buckets), "+Inf"), histogram.counts, strict=True):
                below += count
                lines.append(f'{metric}_bucket{{engine="0",le="{edge}",model_name="{name}"}} {below}')
            lines.append(f'{metric}_sum{{engine="0",model_name="{name}"}} {histogram.total:.9g}')
            lines.append(f'{metric}_count{{engine="0",model_name="{name}"}} {histogram.count}')
        return "\n".join(lines) + "\n"
