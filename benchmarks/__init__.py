"""Performance goals, each measured as a ratio of two computations run in turns."""
