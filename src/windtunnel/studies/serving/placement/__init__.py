"""Which deployments go on which GPUs: the searches of DistServe, AlpaServe and MuxServe as pure functions."""
