"""Traces of real generations: what a policy would have seen, without the model."""
