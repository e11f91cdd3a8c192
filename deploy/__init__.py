"""What helps to run a fleet, and to believe in it."""
