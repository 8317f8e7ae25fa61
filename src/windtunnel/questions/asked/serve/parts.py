"""Parts of questions about served models: an engine, requests, how they come, who answers them, what is promised."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar, Literal

from windtunnel.errors import SpecError
from windtunnel.questions.about import About, OneOf, part
from windtunnel.questions.asked.parts import ClusterPart, ModelPart

Weights = Literal["bf16", "fp16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int8", "int4"]
Router = Literal["round-robin", "least-loaded", "prefix-aware"]
ENGINE, LAYOUT, REQUESTS, LOAD, LIMITS = "Engine", "Layout", "Requests", "Load", "Limits"
MOST = 10_000_000  # of requests, and of tokens of one


@part
class ServedModel:
    """A served model."""

    positional: ClassVar[tuple[str, ...]] = ("model",)
    model: Annotated[
        ModelPart,
        About(
            "A model of the catalogue, the path of a config.json, or how an engine is started: a command line such as"
            " 'vllm serve ...', its script, or a manifest of Dynamo or llm-d."
        ),
    ]
    cluster: Annotated[ClusterPart, About("GPU type and number, h100-sxm:8, or a cluster file.")]


@part
class EngineName:
    """An engine, in which formats it keeps a model, and how long a request may be."""

    engine: Annotated[
        str, About("Engine and release: vllm-0.12, sglang-0.5.9, trtllm-1.0; or a file (vllm).", ENGINE)
    ] = "vllm"
    weights: Annotated[Weights | None, About("Weights; as the checkpoint has them by default.", ENGINE)] = None
    expert_weights: Annotated[
        Weights | None, About("Weights of routed experts, where different.", ENGINE, rare=True)
    ] = None
    kv: Annotated[
        Literal["bf16", "fp8"] | None,
        About("KV cache; by default the checkpoint's, else the engine's choice.", ENGINE, rare=True),
    ] = None
    max_model_len: Annotated[
        int | None, About("Most tokens of a request; by default the model's own.", ENGINE, least=1, rare=True)
    ] = None
    max_num_batched_tokens: Annotated[int | None, About("Tokens in a step.", ENGINE, least=1, rare=True)] = None
    sampling: Annotated[
        Literal["greedy", "top-p"],
        About(
            "How tokens are drawn: greedy, as benchmarks do, or from the likeliest (top-p, top-k).", ENGINE, rare=True
        ),
    ] = "greedy"
    gpu_memory_utilization: Annotated[
        float | None, About("Share of memory that the engine takes.", ENGINE, least=0.05, most=1, rare=True)
    ] = None


@part
class NoDrafts:
    """One token a step."""

    kind: ClassVar[str] = "undrafted"
    phrase: ClassVar[str] = "one token a step"


@part
class Drafts:
    """Speculation: a step checks tokens that were drafted."""

    kind: ClassVar[str] = "drafted"
    phrase: ClassVar[str] = "drafted tokens (--speculative-tokens)"
    taken_as: ClassVar[float] = 0.6  # of three drafted by DeepSeek's own layer: docs/physics/serving.md
    warning: ClassVar[str] = (
        "no --acceptance is given: a drafted token is taken to be kept with a chance of 0.6, as fitted on DeepSeek's"
        " own drafting layer; other drafters and prompts differ, so give what the engine's log says"
    )
    speculative_tokens: Annotated[int, About("Tokens drafted per step.", ENGINE, least=0, most=16, rare=True)]
    acceptance: Annotated[
        float | None, About("Chance that a drafted token is kept (0.6).", ENGINE, least=0, most=1, rare=True)
    ] = None


@part
class Engine(EngineName):
    """An engine and what it is started with."""

    max_num_seqs: Annotated[int | None, About("Sequences in a batch.", ENGINE, least=1, rare=True)] = None
    num_gpu_blocks: Annotated[
        int | None, About("KV blocks of a GPU, as the engine's log says.", ENGINE, least=1, rare=True)
    ] = None
    block_size: Annotated[int | None, About("Tokens of a KV block.", ENGINE, least=1, rare=True)] = None
    prefix_caching: Annotated[bool | None, About("Keep prefixes for later requests.", ENGINE, rare=True)] = None
    chunked_prefill: Annotated[bool | None, About("Cut long prompts into chunks.", ENGINE, rare=True)] = None
    images: Annotated[bool | None, About("Load a checkpoint's vision tower.", ENGINE, rare=True)] = None
    drafting: Annotated[NoDrafts | Drafts, OneOf(), About("", inside=True)] = field(default_factory=NoDrafts)


@part
class TieredEngine(Engine):
    """An engine whose cache has tiers below the GPU's, and that serves adapters."""

    kv_tiers: Annotated[
        str | None,
        About(
            "Where prefixes stay that the GPU's cache drops: host=200GB,disk=4TB@12GB/s,remote=20TB@6GB/s@2ms (size,"
            " rate, latency), of a replica; the remote store of all.",
            ENGINE,
            rare=True,
        ),
    ] = None
    host_cpus: Annotated[
        int | None,
        About("CPUs that the engine's processes share, where there are fewer than those.", ENGINE, least=1, rare=True),
    ] = None
    lora: Annotated[
        str | None,
        About(
            "LoRA adapters that requests ask for: adapters=100,rank=16,resident=8 (how many, the largest rank, slots).",
            ENGINE,
            rare=True,
        ),
    ] = None


@part
class Lengths:
    """Requests made from lengths."""

    kind: ClassVar[str] = "lengths"
    phrase: ClassVar[str] = "made requests (--prompt and --output)"
    usual: ClassVar[int] = 1024  # tokens each way of InferenceX's benchmark
    prompt: Annotated[int | None, About("Prompt tokens of made requests (1,024).", REQUESTS, least=1, most=MOST)] = None
    output: Annotated[int | None, About("Output tokens of made requests (1,024).", REQUESTS, least=1, most=MOST)] = None
    length_ratio: Annotated[
        float, About("Lengths uniform from this share of it to all of it (1).", REQUESTS, least=0, most=1, rare=True)
    ] = 1.0
    requests: Annotated[int | None, About("How many to make, or to take of a trace.", REQUESTS, least=1, most=MOST)] = (
        None
    )

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens in and out: as given, else `usual`."""
        return self.prompt or self.usual, self.output or self.usual

    @property
    def assumed(self) -> tuple[str, ...]:
        """What is said of lengths that nobody gives."""
        lacking = {"in": ("--prompt", self.prompt), "out": ("--output", self.output)}
        ways = {way: flag for way, (flag, tokens) in lacking.items() if tokens is None}
        if not ways:
            return ()
        if len(ways) == 2:
            text = f"no lengths are given: requests of {self.usual:,} tokens in and {self.usual:,} out are assumed"
            return (f"{text} (--prompt, --output, --workload)",)
        ((way, flag),) = ways.items()
        return (f"no {flag} is given: requests of {self.usual:,} tokens {way} are assumed",)


@part
class Trace:
    """Requests of a file."""

    kind: ClassVar[str] = "trace"
    phrase: ClassVar[str] = "a trace (--workload)"
    workload: Annotated[str, About("Trace: CSV or JSONL of lengths and arrivals.", REQUESTS)]
    requests: Annotated[int | None, About("How many of them.", REQUESTS, least=1, most=MOST)] = None


@part
class OpenLoad:
    """An open loop: requests come whether answers do or not."""

    kind: ClassVar[str] = "open"
    phrase: ClassVar[str] = "an open loop (--rate)"
    rate: Annotated[float, About("Requests per second: of made requests, or a trace scaled to it.", LOAD, least=0)]
    cv: Annotated[float, About("Burstiness of arrivals: 0 constant, 1 Poisson (1).", LOAD, least=0, rare=True)] = 1.0


@part
class ClosedLoad:
    """A closed loop: so many requests in flight."""

    kind: ClassVar[str] = "closed"
    phrase: ClassVar[str] = "a closed loop (--concurrency)"
    concurrency: Annotated[int, About("Closed loop: so many requests in flight.", LOAD, least=1, most=100_000)]
    waves: Annotated[int, About("Closed loop: requests per slot (10).", LOAD, least=1, most=MOST, rare=True)] = 10


@part
class TraceTimes:
    """Requests come when the trace says."""

    kind: ClassVar[str] = "recorded"
    phrase: ClassVar[str] = "arrivals as the trace has them"


def check_load(requests: Lengths | Trace, load: OpenLoad | ClosedLoad | TraceTimes) -> None:
    """Raises SpecError where nothing says when made requests come."""
    if not isinstance(requests, Trace) and isinstance(load, TraceTimes):
        raise SpecError("load", None, "add --rate R (open loop) or --concurrency C (closed loop)")


@part
class Replicas:
    """Equal replicas, and how each is laid out."""

    tp: Annotated[int, About("Tensor parallelism (1).", LAYOUT, least=1)] = 1
    pp: Annotated[int, About("Pipeline parallelism (1).", LAYOUT, least=1, rare=True)] = 1
    dp: Annotated[int, About("Attention data parallelism inside a replica (1).", LAYOUT, least=1, rare=True)] = 1
    ep: Annotated[
        int | None, About("Expert parallelism; by default as the engine does.", LAYOUT, least=1, rare=True)
    ] = None
    replicas: Annotated[int, About("Equal replicas behind one router (1).", LAYOUT, least=1)] = 1
    kernels: Annotated[
        str | None, About("Measured kernels: a table, or the folder that holds them.", ENGINE, rare=True)
    ] = None


@part
class Together(Replicas):
    """Equal replicas that do both phases, behind one router."""

    kind: ClassVar[str] = "together"
    phrase: ClassVar[str] = "replicas of both phases (--replicas, --tp)"
    router: Annotated[
        Router,
        About("Which replica gets a request (least-loaded).", LAYOUT, rare=True),
    ] = "least-loaded"


@part
class Apart:
    """Prompts and answers on GPUs of their own."""

    kind: ClassVar[str] = "apart"
    phrase: ClassVar[str] = "pools apart (--prefill and --decode)"
    prefill: Annotated[str, About("Prefill pool of its own: 2xtp4.", LAYOUT)]
    decode: Annotated[str, About("Decode pool of its own: 1xtp8.", LAYOUT)]


@part
class Limits:
    """What users were promised."""

    ttft: Annotated[
        float | None, About("Longest time to the first token, e.g. 1s.", LIMITS, least=1e-9, unit="time", bare_most=60)
    ] = None
    tpot: Annotated[
        float | None, About("Longest time per output token, e.g. 50ms.", LIMITS, least=1e-9, unit="time", bare_most=1)
    ] = None

    def seconds(self) -> dict[str, float]:
        """The limits that are given, as studies name them."""
        both = {"ttft_s": self.ttft, "tpot_s": self.tpot}
        return {name: value for name, value in both.items() if value is not None}
