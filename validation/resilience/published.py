"""Published figures of resilience beside ours, each with what it had to be told.

    python validation/resilience/published.py [--seeds 300]

`told` is the assumption without which the figure does not follow; where a paper leaves it open, it is ours and says so.
Sources: TrainMover (OSDI 2026, arXiv 2412.12636), Kokolis et al. (HPCA 2025), ByteRobust (SOSP 2025), MegaScale (NSDI
2024), Llama 3 (arXiv 2407.21783).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from windtunnel.studies.resilience import (
    Checkpoint,
    SurviveQuestion,
    ettr,
    published,
    read_failures,
    standbys,
    survive,
    with_times,
)

HOUR = 3600.0
RSC1 = read_failures("rsc-1")
# Seconds to build the groups of a job, MegaScale at 2,048 GPUs. With a global barrier after each group: (groups +
# barrier) x ranks operations on one store, so c n^2: 1,047 s on TCPStore (250 us an operation), 361 s on Redis (86 us).
# Groups in an order that needs no barrier: so many operations a rank, the most that keeps both published bounds.
MEASURED_AT = 2048
OPERATION_S = {"tcp-store": 1047.0 / MEASURED_AT**2, "redis": 361.0 / MEASURED_AT**2}
ORDERED_OPERATIONS = 25


def initialisation_s(gpus: int, kind: str) -> float:
    if kind == "ordered":
        return OPERATION_S["redis"] * ORDERED_OPERATIONS * gpus
    return OPERATION_S[kind] * gpus * gpus


def periodic(every_s: float, pause_s: float) -> float:
    """ETTR of a planned change every `every_s` seconds that pauses the job for `pause_s`."""
    return 1.0 - pause_s / every_s


def slowed(from_step: int, steps: int, slower: float) -> float:
    """Efficiency lost when every step from `from_step` on takes `1 + slower` times as long."""
    return 1.0 - steps / (from_step + (steps - from_step) * (1.0 + slower))


@dataclass(frozen=True)
class Row:
    what: str
    printed: float
    ours: float
    told: str
    kind: str = "value"  # value: within 10 %; most: not above; least: not below; within: inside ours..also
    also: float | None = None

    @property
    def good(self) -> bool:
        if self.kind == "most":
            return self.ours <= self.printed
        if self.kind == "least":
            return self.ours >= self.printed
        if self.kind == "within":
            return self.ours <= self.printed <= (self.also or 0.0)
        return abs(self.ours / self.printed - 1) <= 0.10


def trainmover() -> list[Row]:
    times = published()
    init_s = times.load + times.groups + times.warm_up
    restart_s = times.detect_explicit + times.schedule + init_s
    linear = init_s / RSC1.mttf_s(65_536, 8)
    of_wall = linear / (1 + linear)
    week = 7 * 86_400.0
    rate = 1 / RSC1.mttf_s(131_072, 8)
    swap_s = times.delta_groups + times.peer_state
    largest = published(131_072)
    parcae_s = largest.groups + largest.warm_up + largest.peer_state
    saved_20b = Checkpoint(round(20e9 * 16), 4, 1, 64e9, 25e9, 4 * 0.25e9)
    # 8K GPUs for a week: a failure costs the swap, and without a standby two minutes of scheduling more.
    failures = week / RSC1.mttf_s(8192, 8)
    reschedule_s = 120.0
    with_one = failures * (swap_s + reschedule_s) / HOUR * 8192 + week / HOUR * 8
    without = failures * (swap_s + reschedule_s + times.warm_up) / HOUR * 8192
    return [
        Row("tm-01 restart at 8,192 GPUs, min", 6.47, restart_s / 60, "parts of recovery.yaml, made from this figure"),
        Row(
            "tm-01 framework initialisation, min",
            4.45,
            init_s / 60,
            "the three printed shares of it: made from this figure",
        ),
        Row(
            "tm-02 groups, 64 GPUs, s",
            50,
            published(64).groups,
            "grows by 1.6 ms a GPU: made from this figure and the next",
        ),
        Row("tm-11 groups before, GPT-5.12T MoE, s", 51, published(1024).groups, "taken to be on 1,024 GPUs (ours)"),
        Row(
            "tm-07 full initialisation, 32 GPUs, s",
            100,
            published(32).groups + times.warm_up + 6.7e9 * 16 / 32 / 0.25e9,
            "6.7B read at 0.25 GB/s a GPU; the warm-up of the 8,192 GPUs, which is another job's",
        ),
        Row(
            "tm-08 expected change, 1,024 GPUs, s",
            20,
            swap_s,
            "delta groups 7 s as printed (tm-11), state the rest: made from this figure",
            "most",
        ),
        Row(
            "tm-09 Megatron restart, 1,024 GPUs, s",
            300,
            restart_s - times.schedule,
            "as at 8,192 GPUs, with detection, without rescheduling",
        ),
        Row(
            "tm-12 Megatron load, 20B, s",
            320,
            saved_20b.load_s(),
            "16 bytes a parameter over 4 GPUs at 0.25 GB/s (ours)",
        ),
        Row("tm-13 ETTR, rebalanced every 10 min", 0.97, periodic(600, swap_s), "20 s each", "value"),
        Row(
            "tm-14 ETTR of Megatron, the same",
            0.68,
            periodic(600, 192),
            "192 s: initialisation 100 s, save and load 92 s (ours)",
        ),
        Row("tm-15 one GPU 20 % slow from 75 of 100, %", 4.7, 100 * slowed(75, 100, 0.20), "nothing"),
        Row(
            "tm-16 GPU-hours wasted against no standby, %",
            -35.91,
            100 * (with_one / without - 1),
            "2 min charged to both; without: a cold warm-up more",
        ),
        Row(
            "tm-17 wasted against Parcae, 128K GPUs, %",
            -88,
            100 * (swap_s / parcae_s - 1),
            f"{swap_s:.0f} s against groups, warm-up, state {parcae_s:.0f} s; {rate * week:,.0f} failures a week",
        ),
        Row(
            "tm-18 lost to restarts, 65,536 GPUs, %",
            16.47,
            100 * linear,
            f"linear form, 4.45 min; of the wall time {100 * of_wall:.2f} %",
        ),
    ]


def meta() -> list[Row]:
    job = RSC1.mttf_s(1024, 8) / HOUR
    lam = read_failures("rsc-2").rate_per_s(100_000, 8)
    mid = 1 / read_failures("rsc-1").mttf_s(3000, 8)
    return [
        Row(
            "rsc-5 MTTF at 16,384 GPUs, h",
            1.8,
            RSC1.mttf_s(16_384, 8) / HOUR,
            "a series of nodes, 6.5 per 1,000 node-days",
        ),
        Row("rsc-6 MTTF at 131,072 GPUs, h", 0.23, RSC1.mttf_s(131_072, 8) / HOUR, "the same"),
        Row(
            "rsc-4 MTTF at 1,024 GPUs, h",
            7.9,
            1 / (1 / job + 1 / 10.9),
            "the series gives 28.8 h; with a failure of the job each 10.9 h (fitted)",
        ),
        Row(
            "rsc-8 ETTR, 2,000-4,000 GPUs, hourly",
            0.9,
            ettr.exact(mid, 600, 0, HOUR),
            "3,000 GPUs of RSC-1, restart 10 min",
            "least",
        ),
        Row(
            "rsc-9 ETTR, 100,000 GPUs of RSC-2",
            0.9,
            ettr.exact(lam, 120, 0, 120),
            f"2 min each; linear {ettr.linear(lam, 120, 0, 120):.3f}",
        ),
    ]


def byterobust() -> list[Row]:
    q = standbys.unavailable(RSC1.host_rate_per_s(8), published().replenish)
    rows = [
        Row(
            f"br-standby-{n}",
            k,
            standbys.standbys_needed(n, q),
            f"q = {q:.3g}: 6.5 per 1,000 node-days, 4.4 h to replace",
        )
        for n, k in ((128, 2), (256, 2), (512, 3), (1024, 4))
    ]
    hot = {2048: 46, 4096: 51, 8192: 54, 16_384: 65}
    made_from = {2048, 8192, 16_384}
    rows += [
        Row(
            f"br-hot-{n // 16} hot update, {n:,} GPUs, s",
            seconds,
            published(n).hot_update,
            "1.6 ms a GPU" + (": made from this figure" if n in made_from else ""),
        )
        for n, seconds in hot.items()
    ]
    job = _asked(9600, 90.0, "production", ("byterobust",), 0.0)
    best = survive(job).entries[0]
    return [*rows, Row("br-ettr, 9,600 GPUs, %", 97, 100 * best.ettr, "catalogue `production`, policy byterobust")]


def megascale() -> list[Row]:
    run = _asked(12_288, 30.0, "production", ("restart",), 15 * 60.0)
    entry = survive(run).entries[0]
    return [
        Row(
            "ms-init-1, 2,048 GPUs, s",
            1047,
            initialisation_s(2048, "tcp-store"),
            "c n^2, c from this figure: no test of c",
        ),
        Row("ms-init-2, s", 361, initialisation_s(2048, "redis"), "c n^2, c from this figure: no test of c"),
        Row("ms-init-3, s", 5, initialisation_s(2048, "ordered"), "25 operations a rank of 86 us (ours)", "most"),
        Row("ms-init-4, 10,240 GPUs, s", 30, initialisation_s(10_240, "ordered"), "the same", "most"),
        Row(
            "ms-fault-4 restarts in weeks",
            100,
            entry.interruptions,
            "catalogue `production`, 12,288 GPUs, 30 days",
            "least",
        ),
        Row("ms-fault-5 effective time, %", 90, 100 * entry.ettr, "the same; policy restart", "least"),
    ]


def llama3(seeds: int) -> list[Row]:
    entry = survive(_asked(16_384, 54.0, "llama3", ("restart",), 0.0, seeds)).entries[0]
    return [
        Row(
            "Llama 3: 419 interruptions in 54 days",
            419,
            entry.interruptions_p10,
            f"80 % of runs: {entry.interruptions_p10:.0f} to {entry.interruptions_p90:.0f}",
            "within",
            entry.interruptions_p90,
        ),
        Row("Llama 3: effective time, %", 90, 100 * entry.ettr, "catalogue `llama3`, policy restart", "least"),
    ]


def _asked(
    gpus: int, days: float, failures: str, policies: tuple[str, ...], restart_s: float, seeds: int = 60
) -> SurviveQuestion:
    replicas = gpus // 128
    saved = Checkpoint(round(175e9 * 14), gpus, replicas, 64e9, 50e9, 0.25e9 * gpus, overhead_s=published().save_stall)
    times = with_times(published(gpus), {"load": restart_s / 3} if restart_s else {})
    return SurviveQuestion(
        gpus,
        8,
        replicas,
        16,
        10.0,
        times,
        lambda left: left / replicas,
        read_failures(failures),
        saved,
        days,
        policies,
        seeds=seeds,
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=300)
    asked = parser.parse_args()
    bad = 0
    for title, rows in (
        ("TrainMover", trainmover()),
        ("RSC", meta()),
        ("ByteRobust", byterobust()),
        ("MegaScale", megascale()),
        ("Llama 3", llama3(asked.seeds)),
    ):
        print(f"\n{title}")
        for row in rows:
            bad += not row.good
            sign = {"most": "<=", "least": ">=", "within": "in", "value": "  "}[row.kind]
            ours = f"{row.ours:10.4g}" + (f"..{row.also:.4g}" if row.also is not None else "")
            print(f"  {'ok ' if row.good else 'OFF'} {row.what:46} {sign} {row.printed:8.4g}  ours {ours}   {row.told}")
    print(f"\n{bad} off")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
