"""Long tests, and what they share with the tests: `python -m tests.soak`.

Each part of those of order and resume goes on from saved positions, in this process or in others
that were killed or had other ranks, and compares every batch that follows with those of an
uninterrupted run. The tests with a result of their own stand in `reports`.
"""
