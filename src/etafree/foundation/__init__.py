"""What every module stands on: arguments, linear algebra, threads, checks and files."""
