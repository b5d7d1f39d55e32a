"""The methods as the shared tests run them: parameters that fire often on short streams."""

BUDGETED = (
    "streaming_llm@sinks=2",
    "h2o",
    "h2o@every=5,recent=3",
    "h2o@reduce=max",
    "tova",
    "tova@per_head=true",
    "tova@every=5",
    "snapkv@window=3",
    "snapkv@window=3,schedule=every_block",
    "snapkv@window=3,schedule=every_block,pooling=max,kernel=7",
    "raas@pin_prompt=false,threshold=0.05",
    "raas@pin_prompt=false,share=0.5,every=5",
    "rkv@every=6,window=3",
    "nacl",
    "lazy_eviction@window=4,threshold=0.05",
    "lazy_eviction@window=4,threshold=0.05,guard=true",
    "caote:h2o",
    "caote:tova",
    "caote:tova@every=5",
    "caote:tova@heads=layer",
    "caote:snapkv@window=3",
    "caote:h2o@several=joint_greedy",
    "caote:h2o@several=sequential",
    "fast_caote:h2o",
    "fast_caote:tova",
    "ahakv@recent=3",
    "ahakv@recent=3,accumulation=all",
    "ahakv@recent=3,gain=measured,sinks=2",
)
"""Methods that evict down to a budget."""

HOLDS_BUDGET_ALWAYS = tuple(
    spec
    for spec in BUDGETED
    if not spec.startswith(("nacl", "rkv", "lazy", "raas"))
    and "every=" not in spec
    and spec != "snapkv@window=3"
)
"""Those that are due after every block and step."""

SELF_SIZED = (
    "full",
    "rpc@interval=6,selector=3,compression=3",
    "desirekv@interval=6,selector=3,low_bits=16,high_bits=16",
)
"""Methods that evict by their own rule, or not at all, at full precision."""

QUANTIZING = (
    "kivi@group=4,residual=8",
    "kivi@group=4,residual=8,key_bits=8",
    "ddks@interval=6,selector=3,group=4",
    "desirekv@interval=6,selector=3,group=4",
    "desirekv@interval=6,selector=3,group=4,scope=all",
)
"""Methods that store codes."""

RANDOM = ("nacl",)
"""Methods that draw noise per head, which a permutation of the heads does not permute."""
