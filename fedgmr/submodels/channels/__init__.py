"""Which channels of a model belong together, read off its graph."""
