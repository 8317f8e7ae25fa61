"""How long does one training step take, does it fit, and how sure is that?

    python examples/01_predict.py

Llama 3.1 405B on 8,192 H100, as in `windtunnel predict llama-3.1-405b --cluster h100-sxm:8192 ...`.
"""

from __future__ import annotations

import windtunnel

TOKENS_TO_TRAIN = 15.6e12  # what Llama 3.1 405B was trained on (arXiv:2407.21783)


def main() -> None:
    """Predict one step, and print what a whole run of such steps would cost."""
    result = windtunnel.predict(
        model="llama-3.1-405b",
        cluster="h100-sxm:8192",
        plan={"tp": 8, "pp": 16, "cp": 2, "global_batch": 1536, "seq_len": 8192},
    )
    assert result.status == "ok"
    low, high = result.step_time_p5_ns / 1e9, result.step_time_p95_ns / 1e9
    memory = result.peak_memory.device_bytes / 2**30
    capacity = result.memory_capacity_bytes / 2**30
    days = TOKENS_TO_TRAIN / result.tokens_per_s / 86_400

    print(f"one step      {result.step_time_s:.2f} s, with 90 % chance between {low:.2f} and {high:.2f} s")
    print(f"throughput    {result.tokens_per_s_per_gpu:.0f} tokens/s per GPU, MFU {result.mfu:.1%}")
    print(f"memory        {memory:.1f} of {capacity:.1f} GiB on the fullest GPU")
    print(f"largest cost  {result.limits[0].what}, {result.limits[0].share:.0%} of the step")
    print(f"15.6 T tokens {days:.0f} days without interruption, {days * 24 * result.n_gpus / 1e6:.1f} M GPU-hours")


if __name__ == "__main__":
    main()
