"""Result files of the load generators people already use, each read by a pure function into a ``BenchmarkRun``."""
