"""Lina: pricing and packing in `price`; the real twins are in `windtunnel.real.techniques`."""
