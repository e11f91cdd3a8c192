"""The unmodified runtime, and the reference server, against this one. `python -m tests.interop`."""
