"""AdaptDL's simulator: 60 s ticks, whole seconds, 30 s restarts."""
