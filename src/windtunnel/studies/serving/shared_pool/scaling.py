"""How many replicas a model wants: a pure state machine over what is looked at every few seconds.

    wanted = ceil(requests that are here / target), within least and most
    more at once;  fewer when less was wanted at every look for `idle_ns`, and then the most of what was wanted

Source: the rule of Kubernetes' horizontal autoscaler with a stabilisation window for scaling down.
"""

from __future__ import annotations

import math
from collections import deque
from typing import final

from windtunnel.studies.serving.shared_pool.spec import Scaling


@final
class Scaler:
    """Of one model."""

    def __init__(self, rules: Scaling) -> None:
        self.rules = rules
        self.wanted = rules.least
        self._looks: deque[tuple[int, int]] = deque()  # (ns, wanted)

    def look(self, now_ns: int, load: int) -> int:
        """Replicas wanted now, with `load` requests waiting or running."""
        rules = self.rules
        now = min(rules.most, max(rules.least, math.ceil(load / rules.target)))
        self._looks.append((now_ns, now))
        while self._looks[0][0] < now_ns - rules.idle_ns:
            self._looks.popleft()
        self.wanted = max(want for _, want in self._looks)
        return self.wanted
