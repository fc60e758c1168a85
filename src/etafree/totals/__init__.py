"""Total losses M(theta), one engine per file."""
