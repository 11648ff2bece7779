"""Test and validation metrics of flat models."""
