"""Attention traces: recorded or synthetic, replayed under any policy, and judged."""
