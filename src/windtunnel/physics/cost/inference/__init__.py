"""Kernels of inference engines: decode attention, latent attention, routed experts, all-reduce inside a CUDA graph.

Measured tables of `aiconfigurator-core` where they are to be had, bytes over bandwidth and FLOPs over rate elsewhere.
"""

from __future__ import annotations

from windtunnel.physics.cost.inference.kernels import InferenceKernels, inference_kernels

__all__ = ["InferenceKernels", "inference_kernels"]
