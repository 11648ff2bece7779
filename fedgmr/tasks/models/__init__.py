"""Models of the built-in tasks."""
