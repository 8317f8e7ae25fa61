"""KAI-Scheduler and Volcano: queues that share what is left by weight, and take back what they are owed.

KAI divides over-quota GPUs by weight, level by level; Volcano's `proportion` (or `capacity`) plugin gives each queue
its part by weight up to what it can use. Each turn goes to the queue that is least over what it is owed, and one that
is owed more stops jobs of the one that is furthest over: Kueue's fair sharing on such queues (`jobs/fair_queues.py`).
Recast from their concepts, not from their code: no minimum run time before a job may be stopped, no time-based fair
share, no second pass of Volcano's actions; a gang starts whole. Sources: KAI-Scheduler v0.9
(kai-scheduler.io), Volcano 1.12 (volcano.sh).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from windtunnel.studies.fleet.policies.kueue.policy import POLICY, kueue_of

POLICIES = tuple(
    replace(
        POLICY,
        name=name,
        make=partial(kueue_of, fair_sharing=True),
    )
    for name in ("kai", "volcano")
)
