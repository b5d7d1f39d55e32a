"""transformers' quantized cache: ``kvlab conformance run transformers_quantized_cache.py``.

Install ``transformers`` and ``optimum-quanto`` yourself. The cache is said to be "similar to" KIVI.
"""

import torch
from transformers.cache_utils import QuantoQuantizedLayer

ARRAYS = "torch"


def quantize_dequantize(x, bits, group):
    """One tensor stored and read back: each token in groups of channels, quanto's axis 0."""
    if bits not in (2, 4) or x.shape[-1] % group:
        raise NotImplementedError("quanto stores 2 or 4 bits, in groups that divide the vector")
    layer = QuantoQuantizedLayer(nbits=bits, axis_key=0, axis_value=0, q_group_size=group)
    return layer._dequantize(layer._quantize(x[None, None].contiguous(), axis=0))[0, 0]


def kivi_run(queries, keys, values, blocks, key_bits, value_bits, group, residual, softcap):
    """Feed a stream to the cache, and attend to what it returns."""
    if key_bits != value_bits or key_bits not in (2, 4):
        raise NotImplementedError("quanto stores keys and values at the same 2 or 4 bits")
    layer = QuantoQuantizedLayer(
        nbits=key_bits, axis_key=0, axis_value=0, q_group_size=group, residual_length=residual
    )
    G, _, t, d = queries.shape
    outputs, present, done = [], torch.zeros(len(blocks), G, t, dtype=torch.bool), 0
    for number, m in enumerate(blocks.tolist()):
        part = slice(done, done + m)
        done += m
        read_keys, read_values = layer.update(keys[None, :, part], values[None, :, part])
        logits = queries[:, :, part] @ read_keys[0][:, None].mT / d**0.5
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        seen = torch.arange(done) <= torch.arange(done - m, done)[:, None]
        weights = logits.masked_fill(~seen, -torch.inf).softmax(-1)
        outputs.append(weights @ read_values[0][:, None])
        present[number, :, :done] = True
    return {"output": torch.cat(outputs, dim=2), "present": present}


IMPLEMENTATIONS = {"quantize_dequantize": quantize_dequantize, "kivi.run": kivi_run}
