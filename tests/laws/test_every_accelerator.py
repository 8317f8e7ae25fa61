"""Accelerators that nobody timed: each answers for 8B and 70B in training and serving, with a band that says so."""

import pytest

import windtunnel

# Chips on which the model's training state lies, and that serve it under tensor parallelism.
CHIPS = {
    "tpu-v5p": (16, 64, 1, 4), "tpu-v6e": (16, 256, 2, 8), "tpu-v7x": (8, 64, 1, 2), "trainium1": (64, 512, 2, 8),
    "trainium2": (16, 64, 1, 4), "ascend-910b": (16, 64, 1, 4), "ascend-910c": (16, 64, 1, 4),
    "gaudi3": (8, 64, 1, 4), "mi350x": (8, 64, 1, 2), "vr200": (8, 64, 1, 2), "mi455x": (8, 64, 1, 2),
}  # fmt: skip
LEAST_BAND = 1.4  # p95 over the median where no kernel was timed


@pytest.mark.parametrize("gpu", CHIPS)
def test_it_trains_and_serves_both(gpu: str) -> None:
    """A rate below its peak, a step of decoding no faster than its memory."""
    for model, parameters, chips, served in zip(
        ("llama-3.1-8b", "llama-3.1-70b"), (8.03e9, 70.55e9), CHIPS[gpu][:2], CHIPS[gpu][2:], strict=True
    ):
        cluster = windtunnel.parse_cluster(f"{gpu}:{chips}")
        plan = {"framework": "maxtext", "zero_stage": 3, "global_batch": chips, "seq_len": 4096, "recompute": "full"}
        step = windtunnel.ask(
            {"question": "predict", "model": model, "cluster": f"{gpu}:{chips}", "plan": plan}
        ).to_dict()
        assert step["infeasible"] is None
        assert 0.1 < step["tokens_per_s_per_gpu"] * 6.0 * parameters / cluster.gpu.peak_flops("bf16") < 0.8
        assert step["step_time_p95_ns"] > LEAST_BAND * step["step_time_ns"]
        asked = {"replicas": {"tp": served}, "load": {"concurrency": 4}, "requests": {"prompt": 512, "output": 16}}
        found = windtunnel.ask({"question": "serve", "model": model, "cluster": f"{gpu}:{served}", **asked}).to_dict()
        weights_s = 2.0 * parameters / served / cluster.gpu.memory_bandwidth_bytes_per_s
        assert found["tpot_s"]["mean"] > weights_s
