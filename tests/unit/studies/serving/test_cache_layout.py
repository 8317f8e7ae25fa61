"""Caches of models that keep windows and states beside full attention, as engines count them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.physics.model.architecture import Model
from windtunnel.physics.model.mixers import Recurrent
from windtunnel.studies.serving import Deployment, engine_of, load_engine
from windtunnel.studies.serving.kv.capacity import cache_of, kv_bytes_per_token
from windtunnel.studies.serving.run import serve_with
from windtunnel.studies.serving.workload.requests import Workload

GIB = 2**30
VLLM = load_engine("vllm-0.22")


@pytest.mark.parametrize(
    ("tp", "free_gib", "printed"), [(2, 88.77, 2_560_976), (4, 106.25, 6_130_106), (4, 106.27, 6_131_120)]
)
def test_gpt_oss_has_the_cache_that_vllm_prints(tp: int, free_gib: float, printed: int) -> None:
    """vLLM 0.22.1 on H200, max_model_len 2,068, 8,192 tokens of a step: its log."""
    cache = cache_of(load_model("gpt-oss-120b"), Deployment(tp=tp), "bf16", VLLM)
    assert cache.printed_tokens(free_gib * GIB, 2068, 8192) == pytest.approx(printed, rel=2e-4)


def test_a_long_request_holds_half_of_what_counting_windows_in_full_says() -> None:
    model = load_model("gpt-oss-120b")
    cache = cache_of(model, Deployment(), "bf16", VLLM)
    assert cache.token_bytes == pytest.approx(kv_bytes_per_token(model, Deployment(), "bf16") / 2)
    assert cache.beside_bytes == 9 * cache.unit  # 128 tokens in blocks of 16, and one more


def test_sglang_has_a_second_pool_and_a_connector_none() -> None:
    model = load_model("gpt-oss-120b")
    whole = kv_bytes_per_token(model, Deployment(), "bf16")
    assert cache_of(model, Deployment(), "bf16", load_engine("sglang")).token_bytes == pytest.approx(0.9 * whole)
    assert cache_of(model, Deployment(), "bf16", replace(VLLM, windows="full")).token_bytes == pytest.approx(whole)


def test_sglangs_pools_of_deepseek_v4_hold_what_is_published() -> None:
    """7,705.45 bytes a token of V4-Flash without what layers of 128 keep: a tenth of 4,096 in each of its 20."""
    cache = cache_of(load_model("deepseek-v4-flash"), Deployment(), "fp8", load_engine("sglang"))
    assert cache.token_bytes == pytest.approx(7705.45 + 0.1 * 20 * 4096, abs=0.01)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3"])
def test_models_of_one_kind_of_layer_are_counted_as_ever(name: str) -> None:
    model = load_model(name)
    cache = cache_of(model, Deployment(), "bf16", VLLM)
    assert (cache.windows, cache.states) == ((), 0.0)
    assert cache.token_bytes == pytest.approx(kv_bytes_per_token(model, Deployment(), "bf16"))
    assert cache.printed_tokens(GIB, 16, 8192) == pytest.approx(GIB / cache.token_bytes, rel=2e-3)  # whole blocks


def _with_states(share: int) -> Model:
    """Llama with `share` - 1 of `share` layers replaced by mixers with a fixed state."""
    llama = load_model("llama-3.1-8b")
    layer = llama.layers[0]
    mixer = Recurrent(
        heads=32, kv_heads=32, head_dim=128, value_head_dim=128, form="gdn", in_width=16384, conv_channels=0
    )
    layers = tuple(layer if i % share == 0 else replace(layer, attention=mixer) for i in range(llama.n_layers))
    return replace(llama, layers=layers)


def test_states_lengthen_blocks_until_one_has_room_for_them() -> None:
    cache = cache_of(_with_states(4), Deployment(), "bf16", VLLM)  # 8 layers of attention, 24 mixers: 1 group and 3
    state, token = 32 * 128 * 128 * 4.0, 8 * 2 * 128 * 2.0
    assert cache.block * token >= state > (cache.block - 16) * token
    assert (cache.groups, cache.states) == (1, 3 * cache.unit)


def test_what_stands_beside_the_tokens_limits_how_many_run_at_once() -> None:
    gpu = parse_cluster("h100-sxm:1")
    engine = engine_of(_with_states(4), gpu, Deployment(num_gpu_blocks=400, max_model_len=2048))
    load = Workload([100] * 6, [20] * 6, None, 6)
    most = engine.blocks // (engine.rules.beside_blocks + 7)  # 100 tokens are 7 blocks
    result = serve_with(engine, load)
    assert result.finished == 6
    assert most < 6
    assert result.batch_mean <= most
    assert result.kv_use_peak <= 1.0


def test_siblings_that_come_together_share_their_prompt() -> None:
    """Blocks have their names when they are planned: fifteen of sixteen equal prompts of one step find them."""
    engine = engine_of(load_model("llama-3.1-8b"), parse_cluster("h100-sxm:1"), Deployment())
    load = Workload([1600] * 16, [20] * 16, [0] * 16, prefix_names=[tuple(range(100))] * 16)
    together = serve_with(engine, load)
    apart = serve_with(engine, replace(load, arrival_ns=np.arange(16) * 10**9))
    assert together.prefix_hit_rate == pytest.approx(15 * 99 / 1600)  # the last token is always computed
    assert apart.prefix_hit_rate == pytest.approx(together.prefix_hit_rate)
    assert together.finished == 16


def test_more_captured_graphs_leave_less_for_the_cache() -> None:
    model, cluster = load_model("llama-3.1-8b"), parse_cluster("h100-sxm:1")
    wide, narrow = (engine_of(model, cluster, Deployment(engine="vllm-0.22", max_num_seqs=seqs)) for seqs in (128, 64))
    # 16 more graphs, 136 to 256 by eights; what draws tokens is smaller than a step's layers for both.
    graphs = wide.profile.graphs(128) - narrow.profile.graphs(64)
    assert graphs == 16
    assert narrow.memory.kv - wide.memory.kv == pytest.approx(graphs * model.n_layers * wide.profile.graph_bytes)


def test_sglang_works_out_its_share_of_the_memory() -> None:
    """Its formula on a GPU of 80 GB: 512 + 1.5 x 8,192 + 2 x 256 + 128 MiB, which is 13,440."""
    model, cluster = load_model("llama-3.1-8b"), parse_cluster("h100-sxm:1")
    chosen = engine_of(model, cluster, Deployment(engine="sglang-0.5.9"))
    share = round(1.0 - 13440 * 2**20 / cluster.gpu.usable_memory_bytes, 3)
    given = engine_of(model, cluster, Deployment(engine="sglang-0.5.9", gpu_memory_utilization=share))
    assert chosen.memory.kv == given.memory.kv
    seeing = engine_of(replace(model, tower=(24, 1024)), cluster, Deployment(engine="sglang-0.5.9"))  # ViT-L/14: 0.95
    taken = 0.05 * share * (cluster.gpu.usable_memory_bytes - chosen.memory.reserved)
    assert chosen.memory.kv - seeing.memory.kv == pytest.approx(taken)
    blind = Deployment(engine="sglang-0.5.9", images=False)  # --language-only: the tower is not loaded
    assert engine_of(replace(model, tower=(24, 1024)), cluster, blind).memory.kv == chosen.memory.kv
    larger = engine_of(replace(model, tower=(48, 1024)), cluster, Deployment(engine="sglang-0.5.9"))
    assert chosen.memory.kv - larger.memory.kv == pytest.approx(taken * (1.0 - 0.95 * 0.9) / 0.05)
    for release, mib in (("0.5.9", 13440 + 2048), ("0.5.12", 13440 + 4096), ("0.5.14", 13440)):  # beside drafts
        drafts = Deployment(engine=f"sglang-{release}", speculative_tokens=2, acceptance=0.5)
        share = round(1.0 - mib * 2**20 / cluster.gpu.usable_memory_bytes, 3)
        given = replace(drafts, gpu_memory_utilization=share)
        assert engine_of(model, cluster, drafts).memory.kv == engine_of(model, cluster, given).memory.kv


@pytest.mark.parametrize(
    ("cluster", "tp", "release", "limit"),
    [
        *[("h100-sxm:4", 1, "0.5.9", 256), ("h100-sxm:4", 4, "0.5.9", 512), ("b200-sxm:1", 1, "0.5.9", 512)],
        *[("l40s:1", 1, "0.5.9", 32), ("rtx-4090:4", 4, "0.5.19", 80), ("rtx-4090:4", 4, "0.5.20", 160)],
    ],
)
def test_sglang_captures_what_its_gpu_and_its_ranks_allow(cluster: str, tp: int, release: str, limit: int) -> None:
    deployment = Deployment(engine=f"sglang-{release}", tp=tp)
    assert engine_of(load_model("llama-3.2-3b"), parse_cluster(cluster), deployment).profile.graph_limit == limit


def test_sglang_runs_48_requests_with_drafts_where_nobody_gives_a_limit() -> None:
    model, cluster = load_model("llama-3.1-8b"), parse_cluster("h100-sxm:1")
    drafts = Deployment(engine="sglang-0.5.9", speculative_tokens=2, acceptance=0.5)
    assert engine_of(model, cluster, drafts).rules.max_num_seqs == 48
    assert engine_of(model, cluster, replace(drafts, max_num_seqs=200)).rules.max_num_seqs == 200
    assert engine_of(model, cluster, replace(drafts, speculative_tokens=0, acceptance=0.0)).rules.max_num_seqs == 1024
    assert engine_of(model, cluster, replace(drafts, engine="vllm-0.22")).rules.max_num_seqs == 1024


def test_a_vision_tower_and_the_images_of_the_measured_step_leave_less_for_the_cache() -> None:
    """Qwen3.6-35B-A3B-NVFP4 on H100 PCIe, vLLM 0.24, which prints 20.4 GiB of weights and 2,233,226 tokens.

    Two images of 16,384 tokens are 131,072 patches, of 1,152 x 36 bytes each.
    """
    model, cluster = load_model("qwen3.5-35b-a3b"), parse_cluster("h100-pcie:1")
    limits = {"max_model_len": 131_072, "max_num_batched_tokens": 32_768, "max_num_seqs": 32}
    whole, text = (
        engine_of(
            model,
            cluster,
            Deployment(engine="vllm-0.24", weights="nvfp4", gpu_memory_utilization=0.9, images=images, **limits),
        )
        for images in (None, False)
    )
    assert whole.memory.weights - text.memory.weights == 2 * 446_571_248
    assert whole.memory.weights / GIB == pytest.approx(20.4, rel=0.005)
    assert whole.memory.activations == 131_072 * 1_152 * 36 > text.memory.activations
    assert whole.cache_tokens == pytest.approx(2_233_226, rel=0.03)
    assert text.cache_tokens > 1.1 * 2_233_226


def test_sglang_leaves_room_for_the_chunk_before_it_divides_it_among_attention_ranks() -> None:
    """_handle_gpu_memory_settings comes before _handle_data_parallelism in its server_args.py (0.5)."""
    model, cluster = load_model("deepseek-v3"), parse_cluster("h200-sxm:8")
    ranks = Deployment(engine="sglang-0.5.9", attn_dp=8, moe_ep=8)
    own, stated = (
        engine_of(model, cluster, replace(ranks, max_num_batched_tokens=tokens)).memory.kv for tokens in (1024, 4096)
    )
    assert own - stated == pytest.approx(1.5 * 2**20 * (8 * 4096 - 8 * 1024), rel=0.03)


@pytest.mark.parametrize(
    ("name", "cluster", "release", "weights", "tokens", "printed"),
    [
        ("qwen3-coder-30b-a3b", "l40s:4", "0.24", "bf16", 32_768, 1_037_152),
        ("minimax-m2", "a100-80gb-sxm:4", "0.22", "fp8_block", 131_072, 244_576),
    ],
)
def test_gpus_before_hopper_keep_half_a_gigabyte_in_reserve(
    name: str, cluster: str, release: str, weights: str, tokens: int, printed: int
) -> None:
    """Logs of validation/serving/kv_unseen_2026_h.csv: the first suggested it, the second did not."""
    limits = {"max_model_len": tokens, "gpu_memory_utilization": 0.9}
    deployment = Deployment(engine=f"vllm-{release}", tp=4, weights=weights, **limits)
    started = engine_of(load_model(name), parse_cluster(cluster), deployment)
    assert started.cache_tokens == pytest.approx(printed, rel=0.03)


def test_vllm_sorted_all_logits_before_triton_drew_tokens() -> None:
    """1.25 GiB of 256 x 131,072 logits (pull request 32558 of vllm-project/vllm)."""
    assert load_engine("vllm-0.12").sampler_bytes * 256 * 131_072 == 1.25 * GIB
    assert load_engine("vllm-0.15").sampler_bytes * 256 * 131_072 == 1.25 * GIB
    assert load_engine("vllm-0.19").sampler_bytes < 40 > load_engine("vllm-0.11").sampler_bytes
