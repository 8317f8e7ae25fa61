"""Threshold and sparse gradients: pricing in `price`; the DDP hook is in `windtunnel.real.techniques`."""
