"""Models: their architecture, the reader of Hugging Face `config.json` files, and the shipped catalogue."""

from __future__ import annotations

from windtunnel.physics.model.architecture import Attention, FeedForward, Layer, LayerParameters, Model
from windtunnel.physics.model.catalogue import catalogue_names, load_model
from windtunnel.physics.model.families import families, transformer
from windtunnel.physics.model.reading.huggingface import read_config

__all__ = [
    "Attention",
    "FeedForward",
    "Layer",
    "LayerParameters",
    "Model",
    "catalogue_names",
    "families",
    "load_model",
    "read_config",
    "transformer",
]
