"""One priced step, however it was made: replay under disturbances, samples, who waits for whom, bands, the Result."""
