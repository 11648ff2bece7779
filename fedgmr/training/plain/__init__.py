"""The plain loop, one task after the other or one per thread."""
