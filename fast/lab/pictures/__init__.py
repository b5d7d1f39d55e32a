"""Pictures and tables for notebooks and the site, one module per subject."""

from kvlab.fast.lab.tables import Table

__all__ = ["Table"]
