"""Measured results as JSON, and the scripts that made them."""
