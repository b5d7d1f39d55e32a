# %% 1
# - A shape knows its query heads, its KV heads and its bytes per token.
# - What would the bytes per token be if there were as many KV heads as query heads?
from dataclasses import replace
def without_grouping(shape: Shape) -> int:
    return replace(shape, kv_heads=shape.heads).token_bytes
# check
assert without_grouping(SHAPES["llama-3.1-8b"]) == 4 * SHAPES["llama-3.1-8b"].token_bytes
assert without_grouping(SHAPES["llama-2-7b"]) == SHAPES["llama-2-7b"].token_bytes

# %% 2
# - The caches get what the weights leave of the memory.
# - Every one of the sequences takes the shape's bytes for each of its tokens.
def longest_text(shape: Shape, hardware, batch: int) -> int:
    return int((hardware.memory - shape.weight_bytes) // (batch * shape.token_bytes))
# check
llama, h200 = SHAPES["llama-3.1-8b"], HARDWARE["h200"]
assert longest_text(llama, h200, 1) == 953_212
assert llama.weight_bytes + 32 * longest_text(llama, h200, 32) * llama.token_bytes <= h200.memory
assert longest_text(llama, h200, 32) == 29_787
