"""Job traces: reading each layout into one table of jobs, and saying what is wrong with a trace."""
