"""Which methods have vectors, with parameters that fire often on short streams, in which groups."""

from dataclasses import dataclass

EVERY_METHOD = ("plain", "gqa", "mqa", "block_not_dividing", "extreme_logits", "softcap")
FULL_PRECISION = (*EVERY_METHOD, "bf16_inputs", "float32_inputs")
EVICTING = (*FULL_PRECISION, "budget_ge_length", "repeated_entries")
VARIANT = ("plain", "gqa")

OPTIONS = "options"
"""Group of those methods' cases that are not the main reading of their kind."""

COUNTING = (
    *("plain", "gqa", "mqa", "block_not_dividing", "softcap", "float32_inputs"),
    *("budget_ge_length", "equal_scores", "repeated_entries"),
)
"""For scores that count steps: groups in which attention crosses a threshold."""


@dataclass(frozen=True)
class Subject:
    """A method as the vectors run it."""

    spec: str
    budget: int | None
    groups: tuple[str, ...]
    tied: bool = False
    """Whether scores are whole steps, so that equal ones decide in every group."""


SUBJECTS = (
    Subject("full", None, FULL_PRECISION),
    Subject("streaming_llm@sinks=2", 12, EVICTING),
    Subject("h2o@recent=4", 12, EVICTING),
    Subject("h2o@every=5,recent=3", 12, VARIANT),
    Subject("h2o@recent=4,reduce=max", 12, ("gqa",)),
    Subject("h2o@recent=4,reduce=sum", 12, ("gqa",)),
    Subject("tova", 12, (*EVICTING, "ties")),
    Subject("tova@per_head=true", 12, VARIANT),
    Subject("snapkv@window=4", 12, (*EVICTING, "ties")),
    Subject("snapkv@window=4,schedule=every_block", 12, VARIANT),
    Subject("snapkv@window=3,pooling=max,kernel=7", 12, VARIANT),
    Subject("snapkv@window=3,border=shrink", 12, VARIANT),
    Subject("raas@pin_prompt=false,threshold=0.05", 12, COUNTING, tied=True),
    Subject("raas@pin_prompt=false,threshold=0.0625", 15, ("at_threshold",)),
    Subject("raas@threshold=0.02", 26, ("equal_scores",)),
    Subject("raas@pin_prompt=false,share=0.5,every=5", 12, ("equal_scores",)),
    Subject("raas@page=4,pin_prompt=false,every=3", 16, VARIANT),
    Subject("rkv@every=6,window=3", 12, tuple(g for g in EVICTING if g != "extreme_logits")),
    Subject("rkv@every=6,window=3,mix=0.5,similarity=0.2", 12, VARIANT),
    Subject("nacl@proxy_share=0.2,sinks=2,recent=2", 12, EVICTING),
    Subject("nacl@proxy_share=0.2,sinks=2,recent=2,causal=false", 12, VARIANT),
    Subject("rpc@interval=6,selector=3,compression=3.0", None, FULL_PRECISION),
    Subject("rpc@interval=6,selector=3,compression=3.0,heads=group", None, VARIANT),
    Subject("rpc@interval=6,selector=3", 28, VARIANT),
    Subject("kivi@group=4,residual=8", None, EVERY_METHOD),
    Subject("kivi@group=4,residual=8,key_bits=8,value_bits=2", None, VARIANT),
    Subject("ddks@interval=6,selector=3,group=4", None, EVERY_METHOD),
    Subject("ddks@reading=mikv,group=4", 12, VARIANT),
    Subject("lazy_eviction@window=4,threshold=0.05", 12, (*COUNTING, "late_steps")),
    Subject("lazy_eviction@window=4,threshold=2.0", 12, ("mri_zero",)),
    Subject("lazy_eviction@window=4,threshold=0.0625", 12, ("at_threshold",)),
    Subject("lazy_eviction@window=4,threshold=0.05,official=true", 12, VARIANT),
    Subject("lazy_eviction@window=4,threshold=0.05,h2_reading=printed", 12, VARIANT),
    Subject(
        "lazy_eviction@window=4,threshold=0.05,first_activation_counts=false",
        12,
        ("gqa", "equal_scores"),
    ),
    Subject("lazy_eviction@window=4,threshold=0.05,guard=true", 12, VARIANT),
    Subject("desirekv@interval=6,selector=3,group=4", None, EVERY_METHOD),
    Subject("desirekv@interval=6,selector=3,group=4,doubt_shift=0", None, VARIANT),
    Subject("desirekv@interval=6,selector=3,group=4,scope=all", None, VARIANT),
    Subject("ahakv@recent=3", 12, EVICTING),
    Subject("ahakv@recent=3,accumulation=all", 12, VARIANT),
    Subject("ahakv@recent=3,gain=measured,sinks=2", 12, VARIANT),
    Subject("ahakv@recent=3,value_prior=norm", 12, VARIANT),
    Subject("caote:h2o@recent=4", 12, (*EVICTING, "alpha_near_one")),
    Subject("caote:tova", 12, (*EVICTING, "alpha_near_one")),
    Subject("caote:tova@heads=layer", 12, VARIANT),
    Subject("caote:tova@heads=max", 12, ("gqa",)),
    Subject("caote:tova@heads=attention", 12, ("gqa",)),
    Subject("caote:h2o@recent=4,evict_before_attend=true", 12, VARIANT),
    Subject("caote:h2o@recent=4,several=joint_greedy", 12, VARIANT),
    Subject("caote:h2o@recent=4,several=sequential", 12, VARIANT),
    Subject("caote:snapkv@window=4", 12, VARIANT),
    Subject("fast_caote:h2o@recent=4", 12, (*EVICTING, "alpha_near_one")),
    Subject("fast_caote:tova", 12, VARIANT),
)
"""The main reading of every method in all groups that apply, its options in a few."""


def is_option(subject: Subject) -> bool:
    """Whether another subject is the main reading of the same method."""
    main = next(each for each in SUBJECTS if composed(each) == composed(subject))
    return main is not subject


def composed(subject: Subject) -> str:
    """Return the method without its options."""
    return subject.spec.partition("@")[0]
