"""What a search answers: plans, what decides between them, what a choice is worth, what to change where none fits."""
