"""Comparison of methods on a task, and its report."""
