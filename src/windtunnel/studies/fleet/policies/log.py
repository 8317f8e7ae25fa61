"""What happened, by the trace's own account: the policy `current`."""

from __future__ import annotations

from windtunnel.studies.fleet.traits import Traits

POLICY = Traits(name="current", asks="log", loop="log", needs=frozenset({"start"}), restarts=False)
