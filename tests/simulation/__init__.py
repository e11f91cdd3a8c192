"""A whole fleet in one thread and in virtual time, where every fault comes from a seed."""
