"""Lina: pricing in `price`, packing and placement in `packing`; the real twins are in `windtunnel.real.techniques`."""
