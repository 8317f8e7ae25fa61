"""The exact clock: things happen when they happen, in integer nanoseconds, on `engine/events.py`."""
