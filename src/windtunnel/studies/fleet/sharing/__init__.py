"""Jobs whose traffic comes in turns, on links that they share: CASSINI's score, its shifts, and a placement by it."""
