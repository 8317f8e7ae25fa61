"""Several models on groups of machines on one clock: routers, autoscaling with start-up delay, spot machines."""
