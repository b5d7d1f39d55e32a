"""Lets the other hooks import `study`, which lies beside their folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
