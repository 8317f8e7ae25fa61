"""Techniques that run in PyTorch: the twins of what `windtunnel.studies.techniques` prices.

from windtunnel.real.techniques import offload, sparse_gradients

windowed = offload.apply(model, torch.optim.Adam, window="auto", device_memory="8 GiB")
state = sparse_gradients.apply(ddp, ratio=0.05)
"""
