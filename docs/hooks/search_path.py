"""Imports `study`, which is beside the hooks' folder, so that the other hooks find it.

MkDocs forgets what a hook adds to the search path; a package that is imported stays.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import study  # noqa: F401
