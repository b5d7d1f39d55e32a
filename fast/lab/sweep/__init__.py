"""Sweeps: method × budget × task × model × seed, on one process or a Ray cluster."""
