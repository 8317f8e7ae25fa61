"""Real ranks among virtual peers, and the prediction of what a captured script does at its full scale."""
