"""Kernels: one function each, computed by PyTorch or by Triton (see `kvlab.fast.kernels.choice`).

Every module holds the function, its PyTorch twin of the same signature, and the bytes and
operations that it takes; `kvlab.fast.kernels.triton` holds the Triton code.
"""
