"""How fast jobs are on how many GPUs: measured tables, or the training predictor."""
