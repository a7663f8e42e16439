"""Benches: one module per question, results as JSON with the machine in them, tables made from it.

A question is a module with `add_options(parser)` and `run(options) -> Result`, listed in
`bench.__main__`. Contenders of a question are timed by `bench.pairing`.
"""
