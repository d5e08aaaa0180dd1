"""Read result files of common load generators, each by a pure function, into a ``BenchmarkRun``."""
