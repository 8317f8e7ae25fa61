"""The same policies, deciding over real processes on this machine."""
