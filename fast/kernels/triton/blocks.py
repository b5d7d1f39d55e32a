"""What several kernels do with a block: squeeze logits, round weights.

No run-time type checker must wrap these functions, nor the kernels that call them.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def squeezed(logits, softcap):
    """Return softcap · tanh(logits / softcap), from exponentials that cannot overflow."""
    small = tl.exp(-2.0 * tl.abs(logits) / softcap)
    bent = softcap * (1.0 - small) / (1.0 + small)
    return tl.where(logits < 0, -bent, bent)


@triton.jit
@no_type_check
def in_reach(weights, TYPE: tl.constexpr):
    """Return weights of at most 1 in a format, for float16 times 2^15.

    Float16 ends at 6e-8, where an attention sink may leave less to each of a hundred thousand.
    """
    if TYPE.is_fp16():
        weights = weights * 32768.0
    return weights.to(TYPE)


@triton.jit
@no_type_check
def out_of_reach(product, TYPE: tl.constexpr):
    """Undo the power of two of `in_reach`."""
    if TYPE.is_fp16():
        product = product * (1 / 32768)
    return product
