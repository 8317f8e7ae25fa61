"""An endpoint that answers as an inference server does, at the times that the simulation says."""
