"""CoflowSim, to the tick."""
