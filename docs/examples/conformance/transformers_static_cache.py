"""transformers' cache of a fixed size: ``kvlab conformance run transformers_static_cache.py``."""

from transformers import StaticCache
from transformers_caches import full_with

ARRAYS = "torch"
IMPLEMENTATIONS = {"full.whole_cache": full_with(StaticCache)}
