"""How a sub-model is laid out in a module and read back."""
