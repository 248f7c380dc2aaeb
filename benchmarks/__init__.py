"""The figures of docs/benchmarks.md: ``python -m benchmarks``."""
