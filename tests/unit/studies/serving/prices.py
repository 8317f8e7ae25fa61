"""A small price list for replicas under test: no tables, no model, every number plain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from windtunnel.studies.serving.engines.profile import Profile
from windtunnel.studies.serving.step_time.times import StepTimes


@dataclass(frozen=True)
class PlainPrices:
    fixed_s: float = 0.008
    per_token_s: float = 20e-6
    per_context_s: float = 1.37e-9
    prompt_s: float = 2e-9  # per token squared
    stages: int = 1

    def dense(self, tokens: float) -> float:
        return self.fixed_s + self.per_token_s * tokens

    def group(self, tokens: float) -> float:
        return 0.0

    def exchange(self, tokens: float) -> float:
        return 0.0

    def decode_surface(self, queries: int = 1) -> Callable[[float, float], float]:
        return lambda sequences, context: self.per_context_s * sequences * context * (1.0 + context / 20_000)

    def decode_nodes(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (1.0, 1024.0), (1.0, 128.0, 512.0, 1024.0, 2048.0, 8192.0)

    def prefill(self, chunk: int, past: int) -> float:
        return self.prompt_s * chunk * (past + chunk / 2)

    def head(self, sequences: float) -> float:
        return 1e-4

    def handover(self, tokens: float) -> float:
        return 0.0


def plain_times(profile: Profile | None = None, prices: PlainPrices | None = None, ranks: int = 1) -> StepTimes:
    profile = profile or Profile(engine="plain", release="1", sequence_s=3e-6)
    return StepTimes(prices or PlainPrices(), profile, 32, ranks)
