"""Pictures and tables for notebooks and the site; they follow the reader's light or dark theme."""

from kvlab.fast.lab.pictures.picture import Picture, canvas, finish
from kvlab.fast.lab.pictures.table import Table

__all__ = ["Picture", "Table", "canvas", "finish"]
