"""Clients folded into the batch, for nets of ordinary layers."""
