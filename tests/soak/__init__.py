"""Long tests of order and resume, and what they share with the tests: `python -m tests.soak`.

Each part goes on from saved positions, in this process or in others that were killed or had other
ranks, and compares every batch that follows with those of an uninterrupted run.
"""
