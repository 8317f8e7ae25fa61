"""The price of one op: how long it takes alone, how sure that is, and where the number comes from."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

from windtunnel.errors import LayoutError


class Source(IntEnum):
    """Where a price comes from, best first."""

    MEASURED = 0  # this very shape was timed
    INTERPOLATED = 1  # between timed shapes
    FITTED = 2  # a formula whose few constants were fitted to measurements
    ROOFLINE = 3  # data-sheet rates times an assumed efficiency


class Price(NamedTuple):
    """Seconds of one op alone on its device, with the 5th and 95th percentile of what it may really be."""

    seconds: float
    p5: float
    p95: float
    source: Source

    def scaled(self, factor: float) -> Price:
        """The same op, `factor` times as long: band and source stay."""
        return Price(self.seconds * factor, self.p5 * factor, self.p95 * factor, self.source)

    def fitted(self, factor: float, sigma: float) -> Price:
        """As `scaled` by a factor that was fitted: no surer than that, however the kernel was timed.

        `sigma`: relative standard deviation of what the factor leaves open.
        """
        if factor == 1.0:
            return self
        longer = self.scaled(factor)
        low, high = longer.seconds / (1.0 + Z95 * sigma), longer.seconds * (1.0 + Z95 * sigma)
        return Price(longer.seconds, min(longer.p5, low), max(longer.p95, high), max(self.source, Source.FITTED))

    def widened(self, low: float, high: float, source: Source) -> Price:
        """From `source`, the band widened by log errors that are independent of those in it: widths add in squares."""
        down = math.hypot(math.log(self.seconds / self.p5), low)
        up = math.hypot(math.log(self.p95 / self.seconds), high)
        return Price(self.seconds, self.seconds * math.exp(-down), self.seconds * math.exp(up), source)

    def plus(self, other: Price) -> Price:
        """One after the other, as sure as the less sure of the two, if that is a twentieth of both or more."""
        seconds = self.seconds + other.seconds
        sources = [price.source for price in (self, other) if price.seconds >= NO_MATTER * seconds]
        return Price(seconds, self.p5 + other.p5, self.p95 + other.p95, max(sources))


def nanoseconds(seconds: float) -> int:
    """Seconds as the engine takes them. Raises LayoutError on what no clock would count."""
    if not seconds < LONGEST_S:
        raise LayoutError(
            f"one operation would take {seconds:.3g} s", "check the rates, bandwidths and latencies of the cluster"
        )
    return round(seconds * 1e9)


Z95 = 1.645  # standard deviations from the mean to the 95th percentile
NO_MATTER = 0.05  # share of a sum below which a part does not decide how sure the sum is
LONGEST_S = 1e7  # four months: some hundred thousand such operations still fit 64 bits
FREE = Price(0.0, 0.0, 0.0, Source.MEASURED)
