"""Clients folded into the batch: nets of ordinary layers, trained for many clients at once."""
