"""A working window of layers on the device: pricing in `window` and `price`; its twin is in `windtunnel.real`."""
