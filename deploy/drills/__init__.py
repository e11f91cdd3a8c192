"""Drills: a fleet of real processes that fails on purpose, and books that are compared after it.

python -m deploy.drills --list
"""
