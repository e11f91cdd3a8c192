"""What tests and benchmarks share: real processes, and ways to wait for them."""
