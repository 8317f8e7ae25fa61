"""From a config.json, or what transformers builds of it, to a model."""
