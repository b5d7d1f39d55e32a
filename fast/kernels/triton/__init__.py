"""Triton kernels; importing them needs Triton, launching them a GPU or its interpreter."""
