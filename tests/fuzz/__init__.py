"""Hostile and broken episodes: good ones are mutated, read, and what comes of it is judged.

`python -m tests.fuzz BASE CLASS SEED` runs one of them again; `scripts/soak fuzz` runs thousands.
"""
