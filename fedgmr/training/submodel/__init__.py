"""A sub-model laid out in a module and read back."""
