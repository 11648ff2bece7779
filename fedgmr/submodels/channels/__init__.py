"""The channels of a model that belong together, read off its graph."""
