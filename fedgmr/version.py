"""The version of the library. It stands nowhere else."""

__version__ = "0.1.0"
