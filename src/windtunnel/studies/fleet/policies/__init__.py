"""Schedulers, one file each: pure functions of a snapshot, or of the whole trace where the rule needs no clock."""
