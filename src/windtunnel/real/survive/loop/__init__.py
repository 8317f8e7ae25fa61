"""The user's own loop under the launcher: their groups, their step and their state outlive a rank."""
