"""The channels of a model that belong together, from its graph."""
