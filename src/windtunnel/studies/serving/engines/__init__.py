"""Engine releases as data: one YAML file per engine, the numbers of each release with their source."""

from __future__ import annotations

from windtunnel.studies.serving.engines.profile import Profile, engine_names, load_engine

__all__ = ["Profile", "engine_names", "load_engine"]
