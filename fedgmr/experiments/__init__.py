"""RUNS: one from a recipe, many in a comparison; their directories and checkpoints."""
