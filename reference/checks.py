"""Refusals of arguments: every error names the argument, its value, and what is allowed."""

from collections.abc import Collection, Mapping
from math import inf
from typing import Any, Literal

Limit = float | tuple[float, float] | Literal["odd"]
"""A least value, the least and the largest, or odd."""


def check_at_least(least: float, **arguments: float | None) -> None:
    """Raise ValueError naming the first argument that is below ``least``, or infinite."""
    for name, value in arguments.items():
        if value is None:
            continue
        if not value >= least:
            raise ValueError(f"{name} = {value} must be at least {least}")
        if value == inf:
            raise ValueError(f"{name} = {value} must be finite")


def check_choice(allowed: Collection[Any], **arguments: Any) -> None:
    """Raise ValueError naming the first argument that is not among ``allowed``."""
    for name, value in arguments.items():
        if value not in allowed:
            choices = ", ".join(repr(choice) for choice in allowed)
            raise ValueError(f"{name} = {value!r} must be one of {choices}")


def check_between(least: float, most: float, **arguments: float) -> None:
    """Raise ValueError naming the first argument outside the range."""
    for name, value in arguments.items():
        if not least <= value <= most:
            raise ValueError(f"{name} = {value} must be between {least} and {most}")


def check_share(**arguments: float) -> None:
    """Raise ValueError naming the first argument that is not between 0 and 1."""
    check_between(0, 1, **arguments)


def check_limits(options: Any, limits: Mapping[str, Limit]) -> None:
    """Raise ValueError naming the first attribute that is beyond its limit; None never is."""
    for name, limit in limits.items():
        if (value := getattr(options, name)) is None:
            continue
        if isinstance(limit, tuple):
            check_between(*limit, **{name: value})
        elif limit == "odd":
            if value < 1 or value % 2 == 0:  # only an odd kernel of a pooling has a centre
                raise ValueError(f"{name} = {value} must be odd and at least 1")
        else:
            check_at_least(limit, **{name: value})


def check_window(window: int, budget: int) -> None:
    """Raise ValueError unless a protected window leaves room in the budget."""
    if window >= budget:
        raise ValueError(f"window = {window} must be smaller than budget = {budget}")


def check_protected(budget: int, protected: int) -> None:
    """Raise ValueError if the protected entries alone exceed the budget."""
    if protected > budget:
        raise ValueError(
            f"budget = {budget} must be at least the {protected} entries that are protected"
        )
