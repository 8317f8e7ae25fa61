"""What does one slow GPU cost a job of 8,192, who is to blame, and what if it were mended?

    python examples/04_disturb.py

Llama 3.1 405B with a GPU that computes 15 % slower and a NIC at half its bandwidth, as in
`windtunnel predict ... --slow gpu=1037:1.15 --slow link=node12.nic3:0.5`. What other disturbances there are:
docs/disturb.md.
"""

from __future__ import annotations

import windtunnel

MODEL, CLUSTER = "llama-3.1-405b", "h100-sxm:8192"
PLAN = {"tp": 8, "pp": 16, "cp": 2, "global_batch": 1536, "seq_len": 8192}
SLOW = ("gpu=1037:1.15", "link=node12.nic3:0.5")


def main() -> None:
    """Print what the disturbances cost together and one by one, and whom the others wait for."""
    result = windtunnel.predict(MODEL, CLUSTER, PLAN, slow=SLOW)
    found = result.disturbed
    assert found is not None
    even_s = found.undisturbed_step_time_ns / 1e9
    print(f"one step {result.step_time_s:.2f} s instead of {even_s:.2f} s: {found.gpus_lost:.0f} GPUs' worth is lost")
    print(f"{result.n_gpus:,} ranks simulated as {found.programs} programs\n")

    print("disturbance               alone    mended  where")
    for one in found.blame:
        alone, given_back = one.alone_ns / 1e9, one.without_ns / 1e9
        print(f"{one.what:22s} {alone:+7.3f} s {-given_back:+7.3f} s  stage {one.stage}, replica {one.replica}")

    print("\nwaiting in                 mean  for")
    for wait in found.waiting[:4]:
        print(f"{wait.communicator:22s} {wait.mean_ns / 1e9:6.3f} s  GPU {wait.last_rank}")

    worst = found.blame[0].what
    mended = windtunnel.predict(MODEL, CLUSTER, PLAN, slow=[text for text in SLOW if text != worst])
    faster = windtunnel.parse_cluster({"gpu": "h100-sxm", "gpus": 8192, "nic": "800 Gb/s"})
    upgraded = windtunnel.predict(MODEL, faster, PLAN, slow=SLOW)
    saved = result.step_time_s - mended.step_time_s
    print(f"\nNICs of 800 Gb/s would save {result.step_time_s - upgraded.step_time_s:.2f} s of every step,")
    print(f"mending {worst} alone {saved:.2f} s, {saved / result.step_time_s:.1%} of it")


if __name__ == "__main__":
    main()
