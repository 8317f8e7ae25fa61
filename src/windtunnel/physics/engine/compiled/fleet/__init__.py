"""Compiled code of the fleet: queues, packing, plans and speeds of jobs that change size."""
