"""How many experts live on a device, and where popular ones go: pure functions, loads in and placement out.

Packing (Lina, ATC 2023): from one expert a device double p until the experts' compute on one micro-operation takes as
long as its all-to-all. E / p ranks then exchange tokens, and each expert has p copies whose gradients are reduced. The
share of an all-to-all that leaves a rank falls from (E - 1) / E to (E / p - 1) / (E / p).

Placement for inference: the path of a token over the last layers tells about the next expert; n_e = N P(e) devices for
expert e, the small ones packed first fit decreasing, at most `most` on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence


def choose_packing(compute_s: Callable[[int], float], exchange_s: Callable[[int], float], experts: int) -> int:
    """The packing by the rule above; the callables give seconds of one micro-operation at packing p."""
    p = 1
    while p * 2 <= experts and compute_s(p) < exchange_s(p):
        p *= 2
    return p


def estimate(
    paths: Mapping[tuple[int, ...], Sequence[float]], tokens: Mapping[tuple[int, ...], int], experts: int
) -> list[float]:
    """Share of tokens that each expert of the next layer will get, from how many tokens came along each path.

    `paths`: for each path of experts, the distribution of the next layer's expert. A path never seen counts as even.
    """
    total = sum(tokens.values())
    even = [1.0 / experts] * experts
    shares = [0.0] * experts
    for path, count in tokens.items():
        for expert, share in enumerate(paths.get(path, even)):
            shares[expert] += share * count / max(1, total)
    return shares


def place(popularity: Sequence[float], devices: int, most: int = 4) -> dict[int, list[int]]:
    """Devices of each expert; `popularity` sums to 1. Every expert has at least one device.

    Raises ValueError where `devices` x `most` places are too few.
    """
    if len(popularity) > devices * most:
        raise ValueError(f"{len(popularity)} experts do not fit on {devices} devices with at most {most} each")
    left, load = [most] * devices, [0.0] * devices
    placed: dict[int, list[int]] = {expert: [] for expert in range(len(popularity))}
    waiting = len(popularity)
    for expert in sorted(range(len(popularity)), key=lambda one: (-popularity[one], one)):
        waiting -= 1
        copies = min(devices, max(1, round(popularity[expert] * devices)))
        copies = max(1, min(copies, sum(left) - waiting))  # the others need a place each
        share = popularity[expert] * devices / copies
        for _ in range(copies):
            free = [device for device in range(devices) if left[device] and device not in placed[expert]]
            if not free:
                break
            fits = [device for device in free if load[device] + share <= 1.0 + 1e-9]
            device = fits[0] if fits else min(free, key=lambda one: (load[one], one))
            placed[expert].append(device)
            left[device] -= 1
            load[device] += share
    return placed
