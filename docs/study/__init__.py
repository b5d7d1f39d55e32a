"""What we found: generators of figures, tables and pages. Not in the wheel: run from a clone."""
