from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from windtunnel.errors import InputFileError, LayoutError, SpecError, UnknownNameError
from windtunnel.physics.cost.inference import inference_kernels
from windtunnel.physics.cost.measured.cache import package_data
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.questions import ask
from windtunnel.studies.serving import Deployment, engine_of, load_engine
from windtunnel.studies.serving.build import DENSE_LAUNCHES
from windtunnel.studies.serving.engines.profile import FRONT_END_S, engine_names
from windtunnel.studies.serving.kv.capacity import kv_bytes_per_token, memory_of, weight_bytes
from windtunnel.studies.serving.run import sources_of
from windtunnel.studies.serving.step_time.layers import Layers
from windtunnel.studies.serving.step_time.times import TICKS_PER_S


@pytest.mark.parametrize("name", engine_names())
def test_every_shipped_release_can_be_read(name: str) -> None:
    profile = load_engine(name)
    assert profile.max_num_batched_tokens > 0
    assert 0 <= profile.layer_gap_s < 1e-3


def test_a_release_that_is_not_listed_is_read_as_the_nearest_older_one() -> None:
    assert load_engine("vllm-0.13.2").delay_steps == load_engine("vllm-0.12").delay_steps == 0
    assert load_engine("vllm-0.19.1").delay_steps == 1
    assert load_engine("vllm").delay_steps == load_engine("vllm-99").delay_steps
    assert load_engine("vllm:0.19") == load_engine("vllm-v0.19") == load_engine("vllm-0.19")
    assert load_engine("tensorrt-llm-1.0.0rc3").engine == "trtllm"


def test_a_release_newer_than_all_that_were_calibrated_says_so_and_has_a_wider_band() -> None:
    for engine in ("vllm", "sglang", "trtllm"):
        last = [name for name in engine_names() if name.startswith(engine)][-1].partition("-")[2]
        known, newer = load_engine(engine), load_engine(f"{engine}-99.1")
        assert (known.notice, known.release, known.calibrated_to) == ("", last, last)
        assert (newer.release, newer.calibrated_to) == ("99.1", last)
        assert "newer than" in newer.notice
        assert newer.band > known.band
        assert load_engine(f"{engine}-{last}.9").notice == ""


def test_constants_of_other_gpus_widen_the_band_and_of_several_defaults_the_first_counts() -> None:
    profile = load_engine("sglang-0.5.12")
    fitted, other = (profile.on(parse_cluster(f"{gpu}:1").gpu) for gpu in ("mi300x", "a100-80gb-sxm"))
    assert fitted.decode_factor != 1.0 == other.decode_factor
    assert other.band > profile.band
    assert profile.on(parse_cluster("h200-sxm:1").gpu).max_num_batched_tokens == 8192  # by memory, beside its constants


@pytest.mark.parametrize(
    ("gpu", "sibling"),
    [("gb200", "b200-sxm"), ("gb300", "b300-sxm"), ("h100-sxm", ""), ("rtx-pro-6000", ""), ("l40s", "")],
)
def test_constants_that_were_fitted_on_a_sibling_hold_with_a_wider_band(gpu: str, sibling: str) -> None:
    profile = load_engine("sglang-0.5.12")
    one = profile.on(parse_cluster(f"{gpu}:1").gpu)
    like = profile.on(parse_cluster(f"{sibling}:1").gpu) if sibling else profile
    for name in ("decode_factor", "expert_factor", "prefill_factor", "prefill_attention_factor", "layer_gap_s"):
        assert getattr(one, name) == getattr(like, name)
    assert one.band > max(like.band, profile.band)


def test_a_front_end_is_of_the_hosts_that_it_was_fitted_on() -> None:
    b200, gb200 = (parse_cluster(f"{gpu}:1").gpu for gpu in ("b200-sxm", "gb200"))
    profile = load_engine("sglang-0.5.12")
    fitted = replace(profile, fitted_source=True)
    assert fitted.on(b200).first_token_s > FRONT_END_S > fitted.on(gb200).first_token_s == 0.0
    assert profile.on(b200).first_token_s == profile.on(gb200).first_token_s == FRONT_END_S


@pytest.mark.parametrize(("release", "least"), [("0.5.9", 94 * 1.35e-3), ("0.5.10", 0.0)])
def test_sglang_launches_prompts_kernel_by_kernel_until_pieces_are_captured(release: str, least: float) -> None:
    deployment = Deployment(engine=f"sglang-{release}", tp=8)
    engine = engine_of(load_model("qwen3-235b-a22b"), parse_cluster("b200-sxm:8"), deployment)
    seconds = engine.times.mixed(0, 0, [(16, 0)], 1) / TICKS_PER_S
    assert least <= seconds < least + 0.03
    dense = engine_of(load_model("llama-3.1-8b"), parse_cluster("b200-sxm:8"), deployment)
    own = 32 / 94 * DENSE_LAUNCHES * least  # a dense layer has fewer kernels
    assert own <= dense.times.mixed(0, 0, [(16, 0)], 1) / TICKS_PER_S < own + 0.01


@pytest.mark.parametrize(
    ("tag", "engine", "release", "noticed"),
    [
        ("lmsysorg/sglang:v0.5.9-cu130", "sglang", "0.5.9", ""),
        ("rocm/sgl-dev:sglang-0.5.8-rocm700-mi35x-mori-0210", "sglang", "0.5.8", ""),
        ("nvcr.io#nvidia/tensorrt-llm/release:1.1.0rc2.post2", "trtllm", "1.1.0rc2.post2", ""),
        ("nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:0.8.1.post2", "trtllm", "1.2.0rc6", ""),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.8.0", "vllm", "0.12", ""),
        ("sglang-glm5-hopper", "sglang", None, "names no release"),
        ("vllm-nightly-ab12cd", "vllm", None, "names no release"),
        ("vllm-nightly-20990101", "vllm", None, "wider band"),
    ],
)
def test_tags_of_containers_are_read_as_engines(tag: str, engine: str, release: str | None, noticed: str) -> None:
    profile = load_engine(tag)
    assert profile.engine == engine
    assert release is None or profile.release == release
    assert noticed in profile.notice
    assert noticed or not profile.notice or "newer" in profile.notice


def test_unknown_engines_and_faulty_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="engine"):
        load_engine("llama-server")
    file = tmp_path / "mine.yaml"
    file.write_text("releases: {}\n")
    with pytest.raises(InputFileError, match="releases"):
        load_engine(str(file))
    other = tmp_path / "other.yaml"
    other.write_text("releases: {'1': {speed: 3}}\n")
    with pytest.raises(SpecError, match="speed"):
        load_engine(str(other))


def test_how_requests_are_looked_for_can_be_said_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("releases: {'1': {framework: sglang, receive_steps: 10, gather: 6, gather_steps: 40}}\n")
    llama, gpu = load_model("llama-3.1-8b"), parse_cluster("h100-sxm:1")
    rules = engine_of(llama, gpu, Deployment(engine=str(path))).rules
    assert (rules.receive_steps, rules.gather, rules.gather_steps) == (10, 6, 40)
    drafting = Deployment(engine=str(path), speculative_tokens=1, acceptance=0.5)
    assert engine_of(llama, gpu, drafting).rules.receive_steps == 15  # 10 steps give 15 tokens


def test_a_factor_of_one_deployment_stays_where_kernels_bear_it_out_and_is_in_band_and_sources() -> None:
    mixtral = load_model("mixtral-8x7b")
    for gpu, ep, stays in (("gb200:4", 4, True), ("gb200:4", 1, False), ("h100-sxm:4", 4, False)):
        engine = engine_of(mixtral, parse_cluster(gpu), Deployment(engine="trtllm", weights="fp8", tp=4, moe_ep=ep))
        assert (engine.times.expert_marginal < 1.0) == stays
        assert any("one deployment" in one for one in sources_of(engine)) == stays
        assert (engine.times.doubt(2048, 500) > 0.01) == stays
        assert engine.times.doubt(64, 500) == 0.0


@pytest.mark.parametrize(
    ("engine", "gpu", "seqs", "tokens"),
    [
        ("vllm-0.11", "h100-sxm", 1024, 8192),
        ("vllm-0.11", "b200-sxm", 1024, 8192),
        ("vllm-0.11", "a100-80gb-sxm", 256, 2048),
        ("vllm-0.11", "l40s", 256, 2048),
        ("vllm-0.6", "h100-sxm", 256, 8192),
        ("sglang-0.5.9", "b200-sxm", 1024, 16384),
        ("sglang-0.5.9", "h200-sxm", 1024, 8192),
        ("sglang-0.5.9", "l40s", 1024, 4096),
    ],
)
def test_batch_and_budget_are_the_engines_defaults_on_the_gpu(engine: str, gpu: str, seqs: int, tokens: int) -> None:
    rules = engine_of(load_model("llama-3.1-8b"), parse_cluster(f"{gpu}:1"), Deployment(engine=engine)).rules
    assert (rules.max_num_seqs, rules.token_budget) == (seqs, tokens)


def test_defaults_by_gpu_without_a_gpu_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("releases: {'1': {by_gpu: [{max_num_seqs: 64}]}}\n")
    with pytest.raises(SpecError, match="memory_below"):
        load_engine(str(path))


def test_vllms_cache_is_what_published_servers_had() -> None:
    llama, qwen = load_model("llama-3.1-8b"), load_model("qwen3-32b")
    small = engine_of(llama, parse_cluster("a100-40gb-sxm:1"), Deployment(engine="vllm-0.19"))
    assert small.memory.tokens == pytest.approx(163168, rel=0.02)  # as its log said
    large = engine_of(qwen, parse_cluster("h100-sxm:1"), Deployment(engine="vllm-0.11"))
    assert 32077 < large.memory.tokens < 40000  # prompts of 32,000 tokens ran there, one at a time


def test_beside_prompts_flash_attention_2_gives_every_head_of_a_sequence_a_tile() -> None:
    engine = engine_of(load_model("qwen3-14b"), parse_cluster("a100-80gb-sxm:1"), Deployment(engine="vllm-0.11"))
    apart = replace(engine.times, profile=replace(engine.profile, mixed_decode_tile=0), _mixed={})
    chunk = [(1960, 0)]
    alone = [times.mixed(0, 0, chunk, 1) for times in (engine.times, apart)]
    beside = [times.mixed(88, 88 * 2048, chunk, 1) for times in (engine.times, apart)]
    assert alone[0] == alone[1]
    # 88 x 40 heads x 64 rows x 2,048 cached x 4 x 128 FLOPs x 40 layers: 9.4e12, at least 30 ms at an A100's 312e12
    assert beside[0] / TICKS_PER_S - alone[0] / TICKS_PER_S > 0.03
    assert beside[0] - beside[1] > 0.015 * TICKS_PER_S
    hopper = engine_of(load_model("qwen3-14b"), parse_cluster("h100-sxm:1"), Deployment(engine="vllm-0.11"))
    assert hopper.profile.mixed_decode_tile == 0  # FlashAttention-3 packs the heads of a group


def test_four_bit_checkpoints_leave_attention_in_sixteen_bits_in_time_and_memory() -> None:
    gpt_oss, deepseek = load_model("gpt-oss-120b"), load_model("deepseek-v3")
    apart = Deployment(weights="bf16", expert_weights="mxfp4")
    whole = Deployment(weights="mxfp4")
    assert weight_bytes(gpt_oss, whole) == weight_bytes(gpt_oss, apart)
    h100 = parse_cluster("h100-sxm:1")
    steps = [engine_of(gpt_oss, h100, one).times.prices.dense(2048) for one in (whole, apart)]
    assert steps[0] == steps[1]
    attention = sum(n * deepseek.parameters_of(layer).attention for layer, n in deepseek.distinct_layers())
    fewer = weight_bytes(deepseek, Deployment(weights="fp8")) - weight_bytes(deepseek, Deployment(weights="nvfp4"))
    others = deepseek.parameters - attention - deepseek.embedding_parameters - deepseek.head_parameters
    assert fewer == pytest.approx(others * (1 - 0.5625) - attention, rel=0.01)


def test_products_that_were_not_timed_are_not_called_measured() -> None:
    model, gpu = load_model("llama-3.1-8b"), parse_cluster("b200:1")
    for weights, told in (("int4", "int4 products: bf16's"), ("nvfp4", ""), ("bf16", ""), ("fp8", "")):
        found = sources_of(engine_of(model, gpu, Deployment(weights=weights)))[0]
        assert told in found
        assert ("products" in found) == bool(told)


def test_captured_batches_pad_to_the_next_size() -> None:
    profile = load_engine("vllm-0.12")
    assert [profile.padded(n)[0] for n in (1, 3, 5, 200, 257, 511)] == [1, 4, 8, 200, 272, 512]
    assert profile.padded(513) == (513, False)


def test_kv_is_split_by_heads_but_a_latent_is_not() -> None:
    llama, deepseek = load_model("llama-3.1-8b"), load_model("deepseek-v3")
    assert kv_bytes_per_token(llama, Deployment(tp=1), "bf16") == 2 * 32 * 8 * 128 * 2
    assert kv_bytes_per_token(llama, Deployment(tp=16), "bf16") == 2 * 32 * 1 * 128 * 2  # not below one head
    for tp in (1, 8):
        assert kv_bytes_per_token(deepseek, Deployment(tp=tp), "fp8") == 61 * 576
    whole = weight_bytes(deepseek, Deployment(weights="fp8"))
    assert whole == pytest.approx(deepseek.parameters, rel=0.02)
    assert weight_bytes(deepseek, Deployment(weights="fp8", tp=8)) == pytest.approx(whole / 8, rel=0.02)


def test_steps_grow_with_batch_context_and_prompt() -> None:
    engine = engine_of(load_model("llama-3.1-8b"), parse_cluster("h100-sxm:1"), Deployment())
    times = engine.times
    for small, large in ((1, 4), (8, 64), (64, 200)):
        assert times.decode(small).at(small * 500) <= times.decode(large).at(large * 500)
    line = times.decode(32)
    sums = [32 * context for context in (1, 100, 1000, 5000, 20000, 100000)]
    assert sorted(line.at(total) for total in sums) == [line.at(total) for total in sums]
    assert (
        times.mixed(0, 0, [(512, 0)], 1) < times.mixed(0, 0, [(2048, 0)], 1) < times.mixed(64, 64_000, [(2048, 0)], 1)
    )
    assert times.mixed(0, 0, [(512, 0)], 1) < times.mixed(0, 0, [(512, 30_000)], 1)


def test_drafting_pays_by_what_is_kept() -> None:
    model, cluster = load_model("llama-3.1-8b"), parse_cluster("h100-sxm:1")

    def step(tokens: int, kept: float) -> int:
        layout = Deployment(speculative_tokens=tokens, acceptance=kept)
        return engine_of(model, cluster, layout).times.decode(8).at(8 * 1000)

    assert step(3, 0.8) < step(3, 0.4) < step(3, 0.0)
    assert step(3, 0.0) >= step(0, 0.0)
    assert step(3, 0.8) > step(0, 0.0) / 4


@pytest.mark.parametrize("tp", [3, 64])
def test_heads_are_shared_out_evenly_or_not_at_all(tp: int) -> None:
    model = load_model("llama-3.1-8b")  # 32 heads
    with pytest.raises(LayoutError, match="32 heads"):
        engine_of(model, parse_cluster("h100-sxm:64"), Deployment(tp=tp))


TIMED = ("a100-80gb", "h100-sxm", "b200", "l40s", "rtx-pro-6000")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("gpu", TIMED)
def test_no_kernel_that_was_timed_reads_faster_than_the_gpus_memory(gpu: str, engine: str) -> None:
    """Caches of the GPU hold what one kernel reads over and over, not what the layers between read."""
    kernels = inference_kernels(parse_cluster(f"{gpu}:8"), engine)
    bandwidth = kernels.gpu.memory_bandwidth_bytes_per_s * 1.0001
    for kv, size in (("bf16", 2.0), ("fp8", 1.0)):
        for heads, groups, width in ((32, 8, 128), (64, 8, 64), (64, 64, 128)):
            table = kernels.decode_attention(heads, groups, width, kv, None)
            for batch in (1, 6, 100, 2000, 9000):
                for context in (1000, 30_000, 700_000, 4_000_000):
                    assert table.at(batch, context) >= batch * context * 2.0 * groups * width * size / bandwidth
        latent = kernels.latent_attention(16, 576, kv)
        assert latent.at(300, 500_000) >= 300 * 500_000 * 576 * size / bandwidth
    for hidden, inter, topk, experts in ((4096, 14336, 2, 8), (2048, 768, 8, 128)):
        line = kernels.experts(hidden, inter, topk, experts, 1, 1, "bf16")
        assert line.at(1) >= topk * 3 * hidden * inter * 2.0 / bandwidth


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("gpu", [*TIMED, "mi300x"])
def test_a_window_is_no_more_work_than_a_context_of_its_length(gpu: str, engine: str) -> None:
    kernels = inference_kernels(parse_cluster(f"{gpu}:8"), engine)
    whole = kernels.decode_attention(32, 8, 128, "bf16", None)
    for window in (128, 1000, 4096):
        cut = kernels.decode_attention(32, 8, 128, "bf16", window)
        assert cut.at(8, 100_000) < 0.5 * whole.at(8, 100_000)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("acceptance", "x"), ("acceptance", None), ("speculative_tokens", 1.5), ("gpu_memory_utilization", "0.9"),
        ("prefix_caching", "no"), ("chunked_prefill", "off"), ("weights", ["fp8"]), ("engine", 1), ("tp", True),
        ("max_num_seqs", "1e3"),
    ],
)  # fmt: skip
def test_fields_of_a_wrong_kind_are_named(name: str, value: object) -> None:
    with pytest.raises(SpecError, match=name):
        Deployment(**{name: value})  # type: ignore[arg-type]


class OnlyStreams:
    """Kernels that take nothing, but for those that stream: a second a byte."""

    def __getattr__(self, name: str) -> Any:
        return lambda *given: given[0] if name == "stream_s" else 0.0


def test_small_kernels_are_shared_out_by_tensor_parallelism_and_norms_are_not() -> None:
    model, tokens = load_model("llama-3-8b"), 100.0
    one, eight = (Layers(model, Deployment(tp=tp), OnlyStreams(), "bf16").dense(tokens) for tp in (1, 8))  # type: ignore[arg-type]
    norms = 2 * model.n_layers * 3 * 2.0 * tokens * model.hidden_size
    assert eight - norms == pytest.approx((one - norms) / 8)
    assert one > norms > 0.0


TABLES = pytest.mark.skipif(package_data() is None, reason="aiconfigurator-core is not installed")


@TABLES
def test_an_engines_own_kernels_in_a_format_are_found_in_its_older_tables_too() -> None:
    """TensorRT-LLM's newest table holds few shapes; in long steps its CUTLASS kernels take half of Triton's time."""
    hopper = parse_cluster("h200-sxm:8")
    own, triton = (
        inference_kernels(hopper, engine).experts(4096, 1536, 8, 128, 1, 8, "fp8") for engine in ("trtllm", "sglang")
    )
    assert own.at(16384) < 0.6 * triton.at(16384)


@TABLES
def test_one_chip_runs_a_named_kernel_alike_on_both_boards() -> None:
    twins = [
        inference_kernels(parse_cluster(f"{gpu}:1"), "trtllm", "1.0", "cutlass").experts(
            5120, 8192, 1, 16, 1, 1, "nvfp4"
        )
        for gpu in ("b200", "gb200")
    ]
    for tokens in (16, 512, 8192):
        assert twins[0].at(tokens) == pytest.approx(twins[1].at(tokens), rel=0.01)


def test_launching_takes_longer_on_grace() -> None:
    profile = replace(load_engine("trtllm-1.0"), fitted_source=True)
    xeon, grace = (profile.on(parse_cluster(f"{gpu}:1").gpu) for gpu in ("b200", "gb200"))
    for name in ("eager_layer_s", "step_s", "sequence_s"):
        assert getattr(grace, name) == pytest.approx(2 * getattr(xeon, name))
    assert xeon == profile


def test_graphs_keep_what_they_draw_from_beside_what_other_steps_need() -> None:
    model, cluster = load_model("llama-3.1-8b"), parse_cluster("h200-sxm:1")
    few, many = (
        memory_of(model, Deployment(max_num_seqs=batch), load_engine("trtllm-1.0"), cluster, "fp8")
        for batch in (512, 1024)
    )
    assert many.activations - few.activations == pytest.approx(512 * 6.0 * model.vocab_size)
    assert many.tokens < few.tokens


@TABLES
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("gpu", ["h200-sxm", "b200"])
@pytest.mark.parametrize(("heads", "groups", "width", "window"), [(40, 8, 128, 8192), (64, 8, 64, 128)])
def test_beyond_its_window_a_cache_costs_no_more(
    gpu: str, engine: str, heads: int, groups: int, width: int, window: int
) -> None:
    """Llama 4's layers were timed with a window of 8,192 tokens; with TensorRT-LLM not beyond it."""
    table = inference_kernels(parse_cluster(f"{gpu}:1"), engine).decode_attention(heads, groups, width, "fp8", window)
    for batch in (8, 37, 128):
        assert table.at(batch, 500_000) <= 1.05 * table.at(batch, 131_072)
        if (window, engine) == (8192, "trtllm"):
            assert table.at(batch, 20_000) == pytest.approx(table.at(batch, 8192), rel=0.01)


def test_drawing_from_the_likeliest_costs_what_the_release_takes_for_it() -> None:
    """A law, and the sum by hand: vLLM 0.11 moves 600 bytes per logit."""
    model, cluster = load_model("llama-3.1-8b"), parse_cluster("h100-sxm:1")

    def head_s(engine: str, sampling: str) -> float:
        return engine_of(model, cluster, Deployment(engine=engine, sampling=sampling)).times.prices.head(256.0)

    more = [head_s(name, "top-p") - head_s(name, "greedy") for name in ("vllm-0.11", "vllm-0.19", "vllm-0.22")]
    assert more[0] > more[1] > more[2] > 0
    assert more[0] == pytest.approx(600 * 256 * model.vocab_size / (0.88 * 3.35e12), rel=0.05)
    with pytest.raises(SpecError, match="use greedy or top-p"):
        Deployment(sampling="beam")


def test_a_model_length_that_the_cache_cannot_hold_is_said() -> None:
    asked = {"question": "serve", "model": "llama-3.1-8b", "cluster": "rtx-4090:1", "load": {"concurrency": 1}}
    asked |= {"requests": {"prompt": 64, "output": 8, "requests": 2}}
    told = [text for text in ask(asked).warnings if "--max-model-len" in text]
    assert len(told) == 1  # vLLM refuses to start
    room = told[0].split("--max-model-len ")[1].split()[0]
    shorter = ask({**asked, "engine": {"max_model_len": int(room)}})
    assert not any("--max-model-len" in text for text in shorter.warnings)


def test_a_release_that_was_fitted_on_pools_alone_decodes_as_those_around_it() -> None:
    """DeepSeek-R1 on eight B200, four in flight: 8.7 to 8.9 ms a token in 2025-12 and in 2026-05."""
    model, cluster = load_model("deepseek-v3"), parse_cluster("b200-sxm:8")

    def step_s(release: str) -> float:
        shape = Deployment(engine=f"sglang-{release}", tp=8, weights="fp8_block", expert_weights="fp8_block")
        return engine_of(model, cluster, shape).times.decode(4).at(4 * 1500) / TICKS_PER_S

    for release in ("0.5.6.post2", "0.5.8", "0.5.10"):
        assert step_s(release) == pytest.approx(8.8e-3, rel=0.1)
