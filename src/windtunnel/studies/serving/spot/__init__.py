"""Serving on machines that come and go: SpotServe's reconfiguration, mapping and migration."""
