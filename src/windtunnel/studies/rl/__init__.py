"""RL post-training: generation, log-probabilities, training and weight transfer on one cluster, simulated as events."""
