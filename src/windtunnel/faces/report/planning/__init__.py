"""Ranked plans and sweeps."""
