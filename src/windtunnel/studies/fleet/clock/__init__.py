"""The one clock of the fleet: jobs, boards, what policies see and answer, and what jobs run."""
