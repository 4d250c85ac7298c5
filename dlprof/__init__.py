"""dlprof: a profiler for the throughput of PyTorch DataLoaders."""

__version__ = "0.1.0"
