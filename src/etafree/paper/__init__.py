"""Models whose losses need more than a linear predictor."""
