"""What is asked of the physics: training, plans, serving, a fleet, failures, traces, sweeps."""
