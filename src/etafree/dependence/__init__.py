"""Which rows may depend on each other, and the variance of the total score that follows."""
