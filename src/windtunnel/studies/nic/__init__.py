"""What a NIC with cores of its own takes off the host: the data path of an AI cluster, split by code and by traffic."""

from __future__ import annotations

from windtunnel.studies.nic.study import NicResult, answer

__all__ = ["NicResult", "answer"]
