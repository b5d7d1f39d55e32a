"""What a cache holds: one text of as many rows as its batch has, which calls of the model continue.

`Text` is all of it: what is done with it now (`State`), where its images are, how far it is (its
`StreamClock`), and the layers with their entries.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from kvlab.fast.engine.cache import BatchClock
from kvlab.fast.engine.layers import Layers, Watch
from kvlab.fast.engine.policy import Policy
from kvlab.fast.huggingface.stream_clock import StreamClock
from kvlab.fast.kernels.notation import Change, Float, Int, Tensor


class State(Enum):
    """What is done with a text now; `docs/compress.md` draws what changes it."""

    READY = "no call of the model or of `generate` runs"
    GIVEN = "`generate` is about to give the model a text"
    WRITING = "`generate` gives the model what it writes, token by token"
    RUNNING = "a call of the model runs"
    BROKEN = "a call of the model failed in the middle"


@dataclass(eq=False)
class Images:
    """What models remember of a text's images, under the name that they give it."""

    ALIKE: ClassVar = ()

    rope_deltas: Int[Tensor, "rows 1"] | None = None
    """What is added to positions after the images of every row, or of rows like it."""


class Text:
    """How far the rows of a text are, and the entries that the policy keeps of them.

    A text does not know the attachment that made it: copies of a cache have a text each, and the
    context of `compress` in common. So whoever asks says whether that context is ``closed``.
    """

    ALIKE = (
        *("state", "policy", "block_clock", "weights_version"),
        *("model_counts_positions", "ends_padded"),
    )
    """Attributes that all rows have in common; `map_rows` moves the rows of all others. Only
    tests/fast/test_rows.py reads it, and compares it with what moves."""

    def __init__(self, policy: Policy, clock: StreamClock, layers: Layers) -> None:
        self.state = State.READY
        self.policy, self.clock, self.layers = policy, clock, layers
        self.block_clock: BatchClock | None = None
        """The clock of the running block, or of the last one; None once rows have moved."""
        self.weights_version: dict[int, int] = {}
        """How often each parameter had been written to when the model read the first tokens, by
        `writes_to` (identity.py): `save` notices by it that weights were changed meanwhile."""
        self.model_counts_positions = False
        """Whether a call gave more than text to a model that places images: then the model itself
        knows the positions."""
        self.ends_padded = False
        """Whether `generate` was given a text whose last column is padding in a row: then it counts
        the positions of what it writes from there."""
        self.rope_owner: Any = Images()
        """Who has the ``rope_deltas`` of this text now:

        | while this text is | ``rope_owner`` is |
        |---|---|
        | `lent_to` a model that places images | the model, which has room for one text's alone |
        | not lent | an `Images` that no model knows |

        The model itself, so that rows that `generate` reorders meanwhile (beams), and copies, are
        of what it has then."""

    @classmethod
    def empty(cls, policy: Policy, count: int, watch: Watch | None) -> "Text":
        """Return a text without tokens in so many compressed layers."""
        clock = StreamClock(watch is not None or policy.uses_confidence)
        return cls(policy, clock, Layers(policy, count, watch))

    def copied(self) -> "Text":
        """Return a text that goes on apart from this one."""
        other = copy(self)
        other.state = State.READY
        other.clock, other.layers = self.clock.copied(), self.layers.copied()
        other.rope_owner = Images(self.rope_owner.rope_deltas)
        return other

    @contextmanager
    def generated(self) -> Iterator[None]:
        """Let `generate` continue the text, first with what it is given."""
        self.state = State.GIVEN
        try:
            yield
        finally:
            if self.state is not State.BROKEN:
                self.state = State.READY

    @contextmanager
    def lent_to(self, model: Any) -> Iterator[None]:
        """Let the model continue this text's images, and take back what it remembers of them.

        To be entered before `generated` and `running`, because it lends a text that is READY alone:
        so within `generate` it does so once, before the first call, and not in the calls.
        """
        base = model.base_model
        if self.state is not State.READY or not hasattr(base, "rope_deltas"):
            yield
            return
        base.rope_deltas, self.rope_owner = self.rope_owner.rope_deltas, base
        try:
            yield
        finally:
            self.rope_owner = Images(base.rope_deltas)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the model on the next tokens; after an error nobody knows what the layers hold."""
        after = State.READY if self.state is State.READY else State.WRITING
        self.state = State.RUNNING
        try:
            yield
        except BaseException:
            self.state = State.BROKEN
            raise
        self.state = after

    def check_whole(self) -> None:
        """Raise ValueError if the text is not one that can go on now."""
        if self.state is State.BROKEN:
            raise ValueError("the last step failed in the middle: call reset() on this cache")
        if self.state is State.RUNNING:
            raise ValueError("a step is running: use the cache between two calls of the model")

    def check_open(self, closed: bool) -> None:
        """Raise ValueError if the context of `compress` has ended, as ``closed`` says."""
        if not closed:
            return
        if self.state in (State.READY, State.BROKEN):
            raise ValueError(
                "the context of compress() that gave this cache has ended: call compress() again, "
                "and give the model the cache that it returns"
            )
        raise ValueError(
            "the context of compress() has ended while the model was generating in it: wait for "
            "the thread that generates inside the context"
        )

    def running_block(self, closed: bool) -> BatchClock:
        """Return the clock of the running block; ValueError outside of a call of the model."""
        self.check_open(closed)
        if self.state is not State.RUNNING or self.block_clock is None:
            raise ValueError("call the model itself inside compress(), not a part of it")
        return self.block_clock

    def end_block(self, logits: Float[Tensor, "N k vocab"], m: int) -> None:
        """Note that a block of ``m`` columns is done, and which sequences lost entries."""
        method, clock = self.policy.specification, self.clock
        if None in clock.first_evictions and method.evicts:
            clock.note_evictions(self.layers.fewest, method.evict_before_attend)
        clock.advance_columns(logits, m)

    def map_rows(self, change: Change, order: Sequence[int]) -> None:
        """Apply one change of the batch axis; ``order`` is the same change as indices."""
        rows = len(self.clock.rows)
        self.layers.map_rows(change, order)
        self.clock.map_rows(change, order)
        self.block_clock = None
        if (offsets := self.rope_owner.rope_deltas) is not None:
            offsets = offsets.repeat_interleave(rows // len(offsets), dim=0)
            self.rope_owner.rope_deltas = change(offsets)
