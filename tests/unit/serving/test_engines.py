from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.errors import InputFileError, LayoutError, SpecError, UnknownNameError
from windtunnel.hardware import parse_cluster
from windtunnel.model import load_model
from windtunnel.serving import Deployment, engine_of, load_engine
from windtunnel.serving.engines.profile import engine_names
from windtunnel.serving.kv.capacity import kv_bytes_per_token, weight_bytes
from windtunnel.serving.run import sources_of


@pytest.mark.parametrize("name", engine_names())
def test_every_shipped_release_can_be_read(name: str) -> None:
    profile = load_engine(name)
    assert profile.max_num_batched_tokens > 0
    assert 0 <= profile.layer_gap_s < 1e-3


def test_a_release_that_is_not_listed_is_read_as_the_nearest_older_one() -> None:
    assert load_engine("vllm-0.13.2").delay_steps == load_engine("vllm-0.12").delay_steps == 0
    assert load_engine("vllm-0.19.1").delay_steps == 1
    assert load_engine("vllm").delay_steps == load_engine("vllm-99").delay_steps
    assert load_engine("tensorrt-llm-1.0.0rc3").engine == "trtllm"
    assert load_engine("trtllm-1.2.0rc6.post2").speculative_tokens == 0
    assert load_engine("trtllm-1.2.0rc6.post3").speculative_tokens > 0


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
