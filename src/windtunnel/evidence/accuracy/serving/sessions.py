"""Recorded sessions of agents, replayed: lanes that send turn after turn, each prompt with what came before.

    prompt of turn k     first + k x new: each brings `new` tokens beside its history, which is in the cache
    answers              log-normal; `median` over mean as the recordings have it

The client takes the sessions from a list until all are done, so that lanes run empty at the end: tokens per second of
the whole run fall short of lanes / TPOT the more, the fewer sessions a lane has. Which facts are published, and where
they were read: `launches.yaml`, `sessions`.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from windtunnel.evidence.accuracy.serving.launches import replayed_facts
from windtunnel.evidence.accuracy.serving.rows import ServingRow
from windtunnel.studies.serving.result import ServingResult
from windtunnel.studies.serving.workload.requests import Turns, Workload

SESSIONS_BAND = 0.1  # log half-width: for what of a prompt is history, and how long answers are
MOST_BLOCKS = 1 << 20  # names of one session's blocks


def is_replay(row: ServingRow) -> bool:
    """Whether the row's client replayed sessions."""
    return row.text("client") == "sessions_replayed"


def in_steady_state(row: ServingRow) -> bool:
    """Whether its time per token and rate are of the phase in which all lanes were busy."""
    return bool(replayed_facts(row)["steady"])


def replayed(row: ServingRow) -> Workload:
    """The sessions of a row, in an order drawn once, with as many lanes as its concurrency."""
    facts, draw = replayed_facts(row), np.random.default_rng(0)
    lanes = row.whole_number("concurrency", 1)
    turns = np.repeat([int(size) for size in facts["turns"]], [int(count) for count in facts["turns"].values()])
    if facts["steady"]:  # as many for each lane
        turns = np.full(lanes, round(float(turns.mean())))
    turns = draw.permutation(turns)
    place = np.concatenate([np.arange(size) for size in turns])
    new = facts["new"] * row.whole_number("isl", 1)
    prompts = row.whole_number("isl", 1) + new * (place - place.mean())
    spread = math.sqrt(-2.0 * math.log(facts["median"]))
    shares = (np.arange(len(place)) + 0.5) / len(place)
    answers = np.exp(spread * np.array([NormalDist().inv_cdf(share) for share in shares]))
    answers = draw.permutation(answers * (row.whole_number("osl", 1) / answers.mean()))
    following = np.arange(1, len(place) + 1)
    following[np.cumsum(turns) - 1] = -1
    session = np.repeat(np.arange(len(turns)), turns)
    block = Workload.prefix_block
    names = [
        tuple(range(number * MOST_BLOCKS, number * MOST_BLOCKS + int(size) // block))
        for number, size in zip(session, np.maximum(prompts, 1), strict=True)
    ]
    return Workload(
        np.maximum(1, np.rint(prompts)).astype(np.int64),
        np.maximum(1, np.rint(answers)).astype(np.int64),
        None,
        lanes,
        names,
        turns=Turns(following, np.zeros(len(place), np.int64)),
    )


def token_s(result: ServingResult) -> float:
    """Seconds per token of all turns together, as (end-to-end - first) / (output - 1) of their means."""
    assert result.stamps is not None
    spans = result.stamps.last - result.stamps.first
    return float(np.nansum(spans) / np.sum(result.stamps.output[~np.isnan(spans)] - 1.0))
