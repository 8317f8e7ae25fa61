"""Replicas that come and go with the sessions that they hold, in the manner of ScaleFlux (TPDS 2022)."""
