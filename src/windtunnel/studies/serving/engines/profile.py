"""What differs between inference engines and their releases: how they batch, what they reserve, what they cost.

A file `<engine>.yaml` holds `defaults`, then `releases` from the oldest to the newest, each with what is different. A
release that is not listed is read as the nearest older one (or the oldest). One newer than all is that too, but says
so (`notice`), and its band is wider: updates change speeds. `newer` holds rules of such releases that were read. Times:

    step     t = max(GPU, host) when the next step is planned while this one runs, else their sum
    GPU      kernels + layers x layer_gap_s;   expert, attention and prefill kernels times their factor
    host     step_s + sequence_s x sequences

The factors say how far a release's kernels lie from those that were timed alone; they are fitted, few, and listed with
what they were fitted on. A user's own file of the same form is read too.
"""

from __future__ import annotations

import dataclasses
import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import hypot
from pathlib import Path
from typing import Any, Literal

from windtunnel.errors import InputFileError, SpecError, UnknownNameError
from windtunnel.files.document import read_mapping
from windtunnel.physics.hardware.catalogue import get_gpu
from windtunnel.physics.hardware.gpu import Gpu
from windtunnel.studies.serving.engines.names import engine_in
from windtunnel.units import parse_bytes

FOLDER = Path(__file__).parent
DEFAULTS_ON = "hopper"  # GPUs that all engines' defaults were fitted on: they need no sibling's constants
UNGRAPHED = "vllm-0.2"  # a release without captured graphs, whose launches were measured
KIN = 2.5  # times by which memories of one kind differ: HBM from HBM, not from GDDR
ELSEWHERE_BAND = 0.25  # log half-width for what a GPU changes of constants that were fitted on others
# HTTP, tokeniser, queues and client: between 5 and 40 ms of single requests on hosts of seven sources.
FRONT_END_S = 0.012
NEWER_BAND = 0.35  # log half-width for what updates change: of a release newer than the newest that was calibrated


@dataclass(frozen=True, slots=True)
class GpuDefaults:
    """What a release sets otherwise on some GPUs: on one, those of a generation, or with less memory than a limit."""

    memory_below: float
    generation: str
    gpu: str
    fields: tuple[tuple[str, object], ...]

    def hold_on(self, gpu: Gpu) -> bool:
        """Whether they are this GPU's."""
        small = gpu.usable_memory_bytes < self.memory_below
        return small or gpu.generation == self.generation or gpu.name == self.gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One release of one engine. Times in seconds."""

    engine: str
    release: str
    released: str = ""  # date of the release
    framework: str = "vllm"  # whose kernels: of cost.inference.measured.FRAMEWORKS
    batching: Literal["mixed", "prefill_first"] = "mixed"  # prompts beside decodes, or before them
    reserve: Literal["prompt", "output", "ratio"] = "prompt"  # blocks that admission asks for
    reserve_ratio: float = 0.7  # with `ratio`: of the output that running sequences still lack
    chunked_prefill: bool = True
    prefix_caching: bool = True
    preemption: Literal["recompute", "swap"] = "recompute"
    max_num_seqs: int = 256
    seqs_per_stage: bool = False  # of a pipeline: the limit of sequences is that of one micro-batch, not of all
    pipeline_hides_host: bool = True  # of a pipeline: what one micro-batch costs the host is spent while others run
    max_num_batched_tokens: int = 8192
    ranks_share_tokens: bool = False  # that default is of all attention ranks together
    block_size: int = 16
    watermark: float = 0.0  # share of blocks that admission leaves free
    gpu_memory_utilization: float = 0.9
    # Of all memory; of what weights and activations leave; or of what is free at start, with weights and cache in
    # it (SGLang's mem_fraction_static, which it works out itself where nobody gives it: kv/capacity.py).
    utilization_of: Literal["total", "rest", "static"] = "total"
    gather_steps: int = 0  # steps that prompts wait until so many are there as `gather` says
    gather: int = 0  # 0 = one for every attention rank
    receive_steps: int = 1  # decode steps between two looks for requests (SGLang: --scheduler-recv-interval)
    reserved_bytes: float = 3.0e9  # context, graphs and buffers beside weights, activations and cache
    reserved_rank_bytes: float = 0.0  # the same where a replica has several GPUs: buffers of their collectives
    graph_bytes: float = 0.0  # of a captured graph, per layer; 0: in `reserved_bytes`
    windows: Literal["full", "freed", "pool"] = "full"  # how layers that keep a window are cached: kv/capacity.py
    window_share: float = 0.8  # with `pool`: tokens of the windows' pool over those of the other
    # States in slots of their own (SGLang: --mamba-full-memory-ratio): memory of slots over that of keys, 0 where they
    # lie beside keys; and slots for which a sequence is admitted, since prefixes keep states too.
    state_share: float = 0.0
    state_slots: int = 1
    compressed_seqs: int = 0  # sequences of a replica whose model compresses its keys (DeepSeek-V4); 0: as of any other
    draft_seqs: int = 0  # sequences of a replica that drafts where nobody says how many; 0: as of any other
    draft_reserved_bytes: float = 0.0  # with `static`: left beside everything where tokens are drafted
    sampler_bytes: float = 0.0  # held while tokens are drawn, per sequence of a full batch and word of the vocabulary
    tower_bytes: float = 0.0  # held by the measured step's images, per patch and unit of the vision tower's width
    filter_bytes: float = 30.0  # moved per logit where tokens are drawn from the likeliest
    expert_workspace: bool = False  # buffers of routed experts are as large as a full step of all ranks could ask for
    by_gpu: tuple[GpuDefaults, ...] = ()  # defaults of the engine that depend on the GPU; the first that says a field
    kv: str = "bf16"
    kv_quantised: str = "bf16"  # with weights below 16 bits
    # On Blackwell with weights below 16 bits: NVIDIA's checkpoints say so, and launch scripts of published runs
    # (InferenceX on B200: SGLang --kv-cache-dtype fp8_e4m3, TensorRT-LLM kv_cache_config dtype fp8).
    kv_blackwell_quantised: str = "fp8"
    asynchronous: bool = False  # the next step is planned while this one runs
    delay_steps: int = 0  # steps by which the host learns of a token later
    graph_limit: int = 512  # largest decode batch that is captured; 0 = none are
    graph_limit_wide: int = 0  # the same with four tensor-parallel ranks or more; 0: no other
    graph_sizes: tuple[int, ...] = ()  # captured batches; () = 1, 2, 4, then every 8 to 256, then every 16
    step_s: float = 0.0
    sequence_s: float = 0.0
    # Rows of a tile that each head of a decoding sequence takes beside prompts: FlashAttention-2 shares neither the
    # cache between the heads of a group nor a tile between sequences there. 0: its attention is as in decode steps.
    mixed_decode_tile: int = 0
    mixed_step_s: float = 0.0  # what a step with prompts takes beyond its kernels
    layer_gap_s: float = 0.0  # per layer: small kernels and gaps that are not priced one by one
    collective_gap_s: float = 0.0  # per sum over tensor-parallel ranks: waiting for the slowest
    # The same per sum and node beyond the first: no kernel of one node serves, small messages wait for proxies. With
    # captured graphs: bf16 DeepSeek-V3 over four nodes of H100 under NeMo RL leaves 10 to 20 us. Without them ten times
    # that (verl and slime, in files of their own under studies/rl/frameworks). No benchmark: the band is wide there.
    node_sum_s: float = 1.5e-5
    eager_layer_s: float = 0.0  # per layer: launching without a captured graph; hidden where kernels are longer
    prompt_layer_s: float = 0.0  # the same of steps with prompts alone, where captured graphs hold none of them
    prompt_graphs: bool = False  # graphs hold pieces of them, where the engine captures those: build.py
    expert_factor: float = 1.0
    expert_factor_ranks: float = 1.0  # instead, where attention ranks share the experts
    # Tokens of each attention rank's buffer where the all-to-all has buffers of one size: captured decode steps compute
    # all of it. SGLang: --moe-a2a-backend mori, SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK. 0: as many as there are.
    all_to_all_buffer: int = 0
    nvfp4_experts: str = ""  # which kernels NVFP4 experts run on: a word of their name in the tables; "" = the first
    mxfp4_experts: str = ""  # the same of MXFP4 experts; "marlin" = as 4-bit integers, which Marlin multiplies alike
    int4_experts: str = ""  # "unpacked": on AMD, 4-bit integers by a kernel that unpacks them as it multiplies
    # FP8 experts on Blackwell, whole ones spread over GPUs: share of the time per further token beyond 512, where those
    # that were timed are not the engine's own kernels. How much it does is in the band.
    expert_marginal_blackwell_fp8: float = 1.0
    decode_factor: float = 1.0  # of dense products and small kernels where nobody is prefilled
    attention_factor: float = 1.0
    prefill_factor: float = 1.0
    quantised_prefill_factor_blackwell: float = 1.0  # on top there, where dense weights have fewer than 16 bits
    expert_prefill_factor: float = 1.0
    expert_prefill_factor_ranks: float = 1.0  # instead, where attention ranks share the experts
    mxfp4_prefill_factor: float = 0.0  # instead of both, of MXFP4 experts; 0: the same
    # Steps with prompts leave attention ranks with unequal numbers of tokens. What goes to the experts and back is then
    # no all-gather and reduce-scatter but a group of broadcasts and reductions, one per rank, each a chain that has to
    # fill before its links are busy: so much of the exchange's time per rank beyond two.
    uneven_exchange_hop: float = 0.0
    prefill_attention_factor: float = 1.0
    cold_start_s: float = 0.0  # what the first large batch compiles where nobody warmed the server up
    first_token_s: float = 0.0  # from request to queue and from token to client: HTTP, detokeniser, the client itself
    # The same of pools apart, beyond: router, handshake and the looks after which a cache that came is seen. Left at
    # 1 to 32 in flight by MI355X, B200 and GB200 (SGLang, TensorRT-LLM under Dynamo): 25 to 150 ms.
    pools_token_s: float = 0.07
    prompt_token_s: float = 2.0e-6  # tokenising, of each token: half a million a second of a core
    read_token_s: float = 0.0  # instead, where prompts wait for each other to be read: host.py
    drafting_overlaps: bool = True  # with drafting, too, the next step is planned while this one runs
    draft_step_hopper_s: float = 0.0  # of every step that drafts, on Hopper: launches that no graph holds
    experts_fitted: bool = True  # whether these constants were held against models with routed experts
    fitted_source: bool = False  # whether these constants rest on runs of whoever asks: no term for other sources
    band: float = 0.15  # log half-width of p5 to p95 of a step time
    calibrated_to: str = ""  # the listed release whose numbers these are
    notice: str = ""  # what has to be said of that choice

    def on(self, gpu: Gpu) -> Profile:
        """With the engine's defaults on this GPU: of several that say a field the first.

        Where the release's constants were fitted on other GPUs alone, they are those of its sibling, and the band is
        wider. Left out one at a time, B200 and B300 are 5 % off on each other's constants and 21 % without; Hopper and
        Blackwell are no better on each other's than without.
        """
        defaults: dict[str, Any] = {}
        for gpu_defaults in reversed(self.by_gpu):
            defaults |= dict(gpu_defaults.fields) if gpu_defaults.hold_on(gpu) else {}
        elsewhere = (
            any("decode_factor" in dict(gpu_defaults.fields) for gpu_defaults in self.by_gpu)
            and "decode_factor" not in defaults
        )
        if elsewhere:
            sibling = {} if gpu.generation == DEFAULTS_ON else self._of_sibling(gpu)
            defaults = {**sibling, **defaults, "band": hypot(self.band, ELSEWHERE_BAND)}
        if not self.fitted_source:  # what is fitted is of the hosts and the client of those rows
            defaults["first_token_s"] = FRONT_END_S
        prompts = "expert_prefill_factor"
        if gpu.kernel_tables is None and prompts in defaults:
            # The ranks' default was fitted beside timed experts; a factor on a roofline is of both, and of launches.
            defaults = {f"{prompts}_ranks": defaults[prompts], "prompt_layer_s": 0.0, **defaults}
        return replace(self, **defaults)

    def ungraphed(self, gpu: Gpu) -> Profile:
        """The same with no captured graph: a layer's launches take what they took where engines had no graphs."""
        launched_s = load_engine(UNGRAPHED).on(gpu).eager_layer_s
        return replace(self.on(gpu), by_gpu=(), graph_limit=0, eager_layer_s=launched_s)

    def _of_sibling(self, gpu: Gpu) -> dict[str, object]:
        """Constants of kernels fitted on a GPU of the same generation with memory of its kind."""
        fitted = [
            (get_gpu(gpu_defaults.gpu), dict(gpu_defaults.fields)) for gpu_defaults in self.by_gpu if gpu_defaults.gpu
        ]
        alike = [
            (other.generation != gpu.generation, fields)
            for other, fields in fitted
            if "decode_factor" in fields
            and other.generation.removesuffix("-ultra") == gpu.generation.removesuffix("-ultra")
            and 1.0 / KIN < other.memory_bandwidth_bytes_per_s / gpu.memory_bandwidth_bytes_per_s < KIN
        ]
        _, fields = min(alike, key=lambda pair: pair[0], default=(False, {}))
        return {name: value for name, value in fields.items() if name != "first_token_s"}  # that is of hosts

    def padded(self, batch: int) -> tuple[int, bool]:
        """(batch that is computed, whether it runs as a captured graph)."""
        if batch > self.graph_limit:
            return batch, False
        if self.graph_sizes:
            place = bisect_left(self.graph_sizes, batch)
            return (self.graph_sizes[place], True) if place < len(self.graph_sizes) else (batch, False)
        if batch <= 4:
            return (1, 2, 4, 4)[batch - 1] if batch else 1, True
        step = 8 if batch <= 256 else 16
        return -(-batch // step) * step, True

    def graphs(self, sequences: int) -> int:
        """How many batches are captured for up to so many sequences: vLLM goes to twice as many."""
        most = min(self.graph_limit, 2 * sequences)
        return len({self.padded(batch)[0] for batch in range(1, most + 1)})


def engine_names() -> tuple[str, ...]:
    """Engines that are shipped, each with its releases: `vllm-0.12`, ..."""
    names = []
    for path in sorted(FOLDER.glob("*.yaml")):
        names += [f"{path.stem}-{release}" for release in _document(path)["releases"]]
    return tuple(names)


@lru_cache(maxsize=64)
def load_engine(spec: str) -> Profile:
    """The profile of `vllm`, `vllm-0.12.0`, a container's tag or a YAML file: the newest release where none is named.

    Raises:
        UnknownNameError: no such engine.
        InputFileError, SpecError: a file with a fault.
    """
    if spec.endswith((".yaml", ".yml")):
        path = Path(spec)
        return replace(_of_release(path.stem, "", path), fitted_source=True)
    name = engine_in(spec)
    if name is None or not (path := FOLDER / f"{name.engine}.yaml").exists():
        raise UnknownNameError("engine", spec, [*engine_names(), *(p.stem for p in FOLDER.glob("*.yaml"))])
    if name.release or name.bare:
        return _of_release(name.engine, name.release, path)
    listed, newest = _dated(path), list(_document(path)["releases"])[-1]
    if not name.day:
        notice = f"{spec} names no release: read as {name.engine} {newest}, the newest that was calibrated"
        return replace(_of_release(name.engine, newest, path), notice=notice)
    out = [release for release, day in listed if day <= name.day]
    profile = _of_release(name.engine, out[-1] if out else newest, path)
    if out and out[-1] != newest:
        return profile
    notice = f"{spec} is of {name.day}: read as {name.engine} {profile.release}, with a wider band"
    return replace(profile, notice=notice, band=hypot(profile.band, NEWER_BAND))


def _of_release(name: str, wanted: str, path: Path) -> Profile:
    document = _document(path)
    releases = list(document["releases"])
    release = _nearest(wanted, releases)
    fields = {**document.get("defaults", {}), **(document["releases"][release] or {})}
    for since, rules in document.get("newer", {}).items():  # read, beside constants that nobody fitted
        if not isinstance(rules, Mapping):
            raise SpecError(f"newer of {name}: {since}", rules, "give fields of a profile", str(path))
        if order_of(str(since)) <= order_of(wanted):  # of a GPU, what was read since counts before what was fitted
            fields |= {**rules, "by_gpu": [*rules.get("by_gpu", ()), *fields.get("by_gpu", ())]}
    profile = replace(_profile(name, wanted or release, fields, path), calibrated_to=release)
    newest = order_of(releases[-1])
    if order_of(wanted)[: len(newest)] <= newest:
        return profile
    notice = f"{name} {wanted} is newer than {releases[-1]}, the newest that was calibrated"
    notice += ": read as that, with a wider band"
    return replace(profile, notice=notice, band=hypot(profile.band, NEWER_BAND))


def _dated(path: Path) -> list[tuple[str, str]]:
    """(release, day) of those that say one."""
    releases = _document(path)["releases"].items()
    return [(name, day) for name, fields in releases if (day := (fields or {}).get("released", ""))]


def release_on(engine: str, date: str) -> str:
    """The newest release that was out on a date (2025-11-10); "" where the profile says no dates."""
    path = FOLDER / f"{engine}.yaml"
    out = [name for name, day in _dated(path) if day <= date] if path.exists() else []
    return out[-1] if out else ""


def _nearest(wanted: str, releases: list[str]) -> str:
    """The newest release that is not newer than `wanted`; the oldest where all are; the newest where none is named."""
    if not wanted:
        return releases[-1]
    order = order_of(wanted)
    older = [release for release in releases if order_of(release) <= order]
    return older[-1] if older else releases[0]


def order_of(release: str) -> tuple[int, ...]:
    """What releases are sorted by: the numbers of their names."""
    return tuple(int(part) for part in re.findall(r"\d+", release)[:5])


@lru_cache(maxsize=64)
def _document(path: Path) -> Mapping[str, Any]:
    document = read_mapping(path, "give an engine profile in YAML")
    if not isinstance(document.get("releases"), dict) or not document["releases"]:
        raise InputFileError(path, "holds no `releases:`", "list at least one release with its numbers")
    if not isinstance(document.get("newer", {}), dict):
        raise InputFileError(path, "`newer` holds no releases", "give rules by release, or leave it out")
    document["releases"] = {str(name): value for name, value in document["releases"].items()}
    return document


def _profile(name: str, release: str, fields: Mapping[str, object], path: Path) -> Profile:
    return Profile(engine=name, release=release, **_values(fields, path))


def _values(fields: Mapping[str, Any], path: Path) -> dict[str, Any]:
    known_fields = {item.name: item for item in dataclasses.fields(Profile)}
    values: dict[str, object] = {}
    for key, value in fields.items():
        if key == "sources":
            continue
        if key == "by_gpu":
            values[key] = tuple(_of_gpu(entry, path) for entry in value)
            continue
        if key not in known_fields or key in ("engine", "release", "calibrated_to", "notice"):
            raise SpecError(
                key, value, f"unknown; an engine profile knows {', '.join(sorted(known_fields))}", str(path)
            )
        if isinstance(value, list):
            value = tuple(int(number) for number in value)
        elif str(known_fields[key].type) == "float":
            value = float(value)
        values[key] = value
    return values


def _of_gpu(entry: Mapping[str, Any], path: Path) -> GpuDefaults:
    own = dict(entry)
    below, generation, gpu = own.pop("memory_below", None), own.pop("generation", ""), own.pop("gpu", "")
    if below is None and not generation and not gpu:
        raise SpecError(
            "by_gpu",
            entry,
            "give `memory_below: 70 GiB`, `generation: ampere` or `gpu: l40s` beside the defaults",
            str(path),
        )
    return GpuDefaults(
        0.0 if below is None else parse_bytes(below, "memory_below", str(path)),
        generation,
        gpu,
        tuple(_values(own, path).items()),
    )
