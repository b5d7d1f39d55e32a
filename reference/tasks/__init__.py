"""Generators and graders of small reasoning tasks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Grade:
    """How far a written solution is right."""

    answer_correct: bool
    """Whether the last step is right, whatever came before it."""
    solution_correct: bool
    correct_steps: int
    """Steps before the first wrong one."""
