"""KV-cache compression in NumPy, to be read beside the papers.

Start with `kvlab.reference.policy` (the four questions and the step) and
`kvlab.reference.methods` (one file per method, and the registry).
"""

from kvlab.reference import methods
from kvlab.reference.generate import generate
from kvlab.reference.policy import Policy, step
from kvlab.reference.transformer import Transformer

__all__ = ["Policy", "Transformer", "generate", "methods", "step"]
