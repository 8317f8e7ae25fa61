"""The clocks of published simulators, written again from their rules, to hold the fleet against their own answers."""
