"""Benchmarks: one file for each, whose `measure` a command of `cli/bench.py` calls;
`python -m rn50.bench` is one rank."""
