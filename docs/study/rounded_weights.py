"""Weights rounded as a GGUF file stores them."""

import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from kvlab.reference.checks import check_choice

KINDS = ("Q4_0", "Q4_1", "Q8_0")
"""Formats with 32 numbers to a scale."""


def round_weights(model: torch.nn.Module, kind: str) -> None:
    """Round all matrices of a model in place; what is no matrix stays, as in a GGUF file.

    Raises:
        ValueError: if there is no such format.
    """
    check_choice(KINDS, weights=kind)
    code = GGMLQuantizationType[kind]
    for parameter in model.parameters():
        if parameter.dim() == 2:
            codes = quantize(parameter.detach().float().numpy(), code)
            parameter.data = torch.from_numpy(dequantize(codes, code)).to(parameter)
