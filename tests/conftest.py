"""Settings that have to stand before any test is imported."""

import os

import hypothesis
import torch
import typecheck  # noqa: F401  (before kvlab is imported)

hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

# Triton reads this when it is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
