"""What would each technique bring to a job, and what lies behind it?

    python examples/05_techniques.py

Mixtral 8x7B on 64 A100 with tensor and expert parallelism, as in `windtunnel predict ... --technique lina`. What each
does and how it runs for real: docs/techniques/README.md.
"""

from __future__ import annotations

from windtunnel.studies.techniques import gains, predict_with

MODEL, CLUSTER = "mixtral-8x7b", "a100-80gb:64"
PLAN = {"tp": 2, "ep": 8, "global_batch": 64, "seq_len": 4096}


def main() -> None:
    """Print each technique's gain, and two of them together."""
    for name, found in gains(MODEL, CLUSTER, PLAN).items():
        if isinstance(found, str):
            print(f"{name:24s} does not apply: {found}")
        else:
            before, after = found.step_time_without_s, found.step_time_with_s
            print(f"{name:24s} {before:6.2f} s -> {after:6.2f} s: {found.gain:5.3f} x")
    both = predict_with(MODEL, CLUSTER, PLAN, ["lina:packing=1", "centauri:pieces=1"]).technique
    assert both is not None
    print(f"{both.name} together: {both.gain:.3f} x")


if __name__ == "__main__":
    main()
