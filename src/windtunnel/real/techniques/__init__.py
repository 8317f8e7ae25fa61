"""Techniques that run in PyTorch: the twins of what `windtunnel.studies.techniques` prices."""
