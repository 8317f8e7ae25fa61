"""What a shape can never do: bounds on one replica that hold for every order in which requests are batched.

latency    a request alone: its prompt's steps, and a decode step of a batch of one
capacity   by the time at which the last request in time is done, H = last arrival + TTFT + longest answer x TPOT,
           all tokens of the shortest answers that may be in time were given: replicas >= tokens / (H x rate).
           rate <= (b + gap) / t(b) over b = 1, 8, 16, ..., as steps of more sequences take no less time; half of the
           tokens come in steps of at most twice the limit, since their mean step takes the limit at most
prompts    the same with the tokens of prompts, which a step computes at no more than its best rate
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from windtunnel.studies.serving.build import Engine
from windtunnel.studies.serving.step_time.times import TICKS_PER_S
from windtunnel.studies.serving.workload.requests import Workload

GAP, FINE = 8, 256  # sequences between sizes that are looked at; above, powers of two


def bounds_of(
    engine: Engine, load: Workload, limits: Mapping[str, float], attain: float
) -> tuple[int | None, int | None, int | None]:
    """(fewest replicas of both phases, of prompts alone, of answers alone); None where no number of them holds."""
    needed = math.ceil(attain * len(load) - 1e-9)
    prompts, answers = np.sort(load.input_tokens), np.sort(load.output_tokens)
    lengths = load.input_tokens + load.output_tokens
    if int((lengths <= engine.longest).sum()) < needed:
        return None, None, None
    ttft, tpot = limits.get("ttft_s"), limits.get("tpot_s")
    arrived = 0.0 if load.arrival_ns is None else float(load.arrival_ns.max()) * 1e-9
    first_s = _first_s(engine, int(prompts[needed - 1]))
    prefills = decodes = 1
    able_prefill = ttft is None or load.prefix_names is not None or first_s <= ttft
    able_decode = tpot is None or _token_s(engine, 1, int(prompts[max(0, len(load) - needed)])) <= tpot
    if ttft is not None and load.prefix_names is None:
        rate = _prompt_rate(engine, int(prompts[0]))
        prefills = max(1, math.ceil(float(prompts[:needed].sum()) / ((arrived + ttft) * rate) - 1e-9))
    if ttft is not None and tpot is not None:
        horizon = arrived + ttft + tpot * float(answers[-1])
        rates = [(seconds, most / seconds) for most, seconds in _steps(engine, int(prompts[0]))]
        quick = max((rate for seconds, rate in rates if seconds <= 2.0 * tpot), default=rates[0][1])
        per_token = 0.5 / quick + 0.5 / max(rate for _, rate in rates)
        decodes = max(1, math.ceil(float(answers[:needed].sum()) * per_token / horizon - 1e-9))
    able = able_prefill and able_decode
    return (
        max(prefills, decodes) if able else None,
        prefills if able_prefill else None,
        decodes if able_decode else None,
    )


def _steps(engine: Engine, context: int) -> list[tuple[int, float]]:
    """(the most sequences that take no less, seconds) of decode steps of growing size."""
    most = max(1, engine.rules.max_num_seqs)
    sizes = [1, *range(GAP, min(most, FINE) + 1, GAP)]
    while sizes[-1] < most:
        sizes.append(min(most, 2 * sizes[-1]))
    return [(after, _token_s(engine, size, context)) for size, after in zip(sizes, [*sizes[1:], most], strict=True)]


def _token_s(engine: Engine, batch: int, context: int) -> float:
    return engine.times.decode(batch).at(batch * context) / TICKS_PER_S


def _first_s(engine: Engine, prompt: int) -> float:
    """A prompt alone."""
    done, ticks = 0, 0
    while done < prompt:
        n = min(engine.rules.longest_chunk, prompt - done)
        ticks += engine.times.mixed(0, 0, [(n, done)], 1)
        done += n
    return ticks / TICKS_PER_S


def _prompt_rate(engine: Engine, shortest: int) -> float:
    """Tokens per second of steps full of the shortest prompts, whose attention is the least."""
    rates = []
    n = min(shortest, engine.rules.longest_chunk)
    count = 1
    while count * n <= engine.rules.token_budget:
        seconds = engine.times.mixed(0, 0, [(n, 0)] * count, 1) / TICKS_PER_S
        rates.append(2.0 * count * n / seconds)  # up to twice as many tokens take no less
        count *= 2
    return max(rates, default=engine.rules.token_budget / _first_s(engine, n))
