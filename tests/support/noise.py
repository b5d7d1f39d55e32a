"""Traces of Gaussian noise."""

import numpy as np

from kvlab.reference.simulator.trace import Metadata, Trace


def noise(seed=0, layers=2, G=2, rho=2, t=70, d=8, prompt=20):
    """Return a trace with confidences while decoding."""
    rng = np.random.default_rng(seed)
    confidence = np.full(t, np.nan)
    confidence[prompt:] = rng.uniform(0.3, 1, t - prompt)
    return Trace(
        queries=2 * rng.normal(size=(layers, G, rho, t, d)),
        keys=rng.normal(size=(layers, G, t, d)),
        values=rng.normal(size=(layers, G, t, d)),
        positions=np.arange(t),
        tokens=np.zeros(t, dtype=np.int64),
        prompt=prompt,
        confidence=confidence,
        metadata=Metadata("noise", tuple(range(layers))),
    )
