"""Policies inside Hugging Face models: the only package that knows transformers.

`compress` puts three things in place and takes them away again: an attention function, a mask
function (both registered under the name ``kvlab``), and a wrapper of the model's ``forward`` that
keeps the clock and cuts prompts into blocks.
"""

from kvlab.fast.huggingface.cache import CacheMemory, CompressedCache
from kvlab.fast.huggingface.compression import compress

__all__ = ["CacheMemory", "CompressedCache", "compress"]
