"""Lina: pricing, packing and placement in `price`; the real twins are in `windtunnel.real.techniques`."""
