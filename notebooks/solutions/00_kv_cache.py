# %% 1
# - A shape knows its query heads, its KV heads and its bytes per token.
# - What would the bytes per token be if there were as many KV heads as query heads?
from dataclasses import replace
def without_grouping(shape: Shape) -> int:
    return replace(shape, kv_heads=shape.heads).token_bytes
# check
for name in ("llama-3.1-8b", "llama-2-7b"):
    of, found = SHAPES[name], without_grouping(SHAPES[name])
    size = "few" if found < of.heads / of.kv_heads * of.token_bytes else "many"
    told = f"For {name} you get {found} bytes a token; with its KV heads it takes {of.token_bytes}"
    assert found == of.heads // of.kv_heads * of.token_bytes, f"{told}. That is too {size}"

# %% 2
# - The caches get what the weights leave of the memory.
# - Every one of the sequences takes the shape's bytes for each of its tokens.
def longest_text(shape: Shape, hardware, batch: int) -> int:
    return int((hardware.memory - shape.weight_bytes) // (batch * shape.token_bytes))
# check
llama, h200 = SHAPES["llama-3.1-8b"], HARDWARE["h200"]
for batch in (1, 32):
    found, each = longest_text(llama, h200, batch), batch * llama.token_bytes
    taken = llama.weight_bytes + found * each
    told = f"For a batch of {batch} you get {found} tokens"
    assert found == int(found), f"{told}: that is no whole number"
    beyond = (taken - h200.memory) / 1e9
    assert beyond <= 0, f"{told}, which take {beyond:,.0f} GB more than the device has"
    assert taken + each > h200.memory, f"{told}, and one more for each sequence would fit"
