"""How a deployment is launched: engines' command lines and manifests, read, written, and asked about."""
