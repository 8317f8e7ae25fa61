"""What each verb asks, one frozen dataclass a verb, and the parts that several of them have."""
