"""Benchmarks: one file for each, whose `measure` a command of `cli/bench.py` calls."""
