"""What runs a comparison: the NumPy reference, or the same policies in PyTorch."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from kvlab.reference import methods
from kvlab.reference.checks import check_choice
from kvlab.reference.files import load_tokenizer
from kvlab.reference.generate import generate
from kvlab.reference.measure import Measurement, teacher_forced
from kvlab.reference.policy import Policy
from kvlab.reference.transformer import Transformer

Texts = Sequence[Sequence[int]]
"""Token ids of several texts."""

Measured = tuple[Measurement, np.ndarray]
"""A measurement, and the logits ``[steps, vocab]``."""

Asked = str | Policy
"""A method in registry syntax, or a policy, which has its budget in it."""

NAMES = ("fast", "reference")


def default_backend() -> str:
    """Return ``fast`` where PyTorch and transformers are installed, else ``reference``."""
    return "fast" if find_spec("torch") and find_spec("transformers") else "reference"


def load_backend(name: str, model: str | Path) -> "Backend":
    """Load a model.

    Raises:
        ValueError: if there is no such backend.
        FileNotFoundError: if the model directory is incomplete.
    """
    check_choice(NAMES, backend=name)
    return FastBackend(model) if name == "fast" else ReferenceBackend(model)


def load_encoder(model: str | Path, backend: str) -> Callable[[str], list[int]]:
    """Return what turns text into token ids, without loading the model.

    Raises:
        FileNotFoundError: if the model directory has no tokenizer.
        ValueError: if the tokenizer cannot be loaded.
    """
    if backend == "reference" or Path(model).is_dir():
        tokenizer = load_tokenizer(model)
        return lambda text: tokenizer.encode(text).ids
    from kvlab.fast.models.loading import load_tokenizer_of

    found = load_tokenizer_of(model)
    return lambda text: found(text)["input_ids"]


class Backend(ABC):
    """A loaded model that writes and measures under any method."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return token ids."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Return text, special tokens included."""

    @abstractmethod
    def write(
        self,
        method: Asked,
        budget: int | None,
        prompts: Texts,
        limit: int,
        stop: int | None,
        solutions: Texts | None = None,
        block_size: int | None = None,
    ) -> tuple[list[list[int]], float]:
        """Continue prompts greedily; return what was written, and the seconds per token.

        Args:
            method: registry syntax, or a policy.
            budget: entries, where the method takes one and is no policy.
            prompts: token ids.
            limit: tokens to write at most.
            stop: token that ends an answer; None: only the limit does.
            solutions: right answers; an answer ends with its first token that differs from them.
            block_size: tokens per block of a prompt; None reads a prompt at once.

        Raises:
            ValueError: if the method does not fit the prompts.
        """

    def write_after(
        self,
        method: Asked,
        budget: int | None,
        text: Sequence[int],
        questions: Texts,
        limit: int,
        stop: int | None,
        solutions: Texts | None = None,
        block_size: int | None = None,
    ) -> tuple[list[list[int]], float]:
        """Answer questions about a text that is compressed before they are known.

        Args and what is returned are those of `write`; the text is read once for all questions.

        Raises:
            ValueError: if the method does not fit the text, or the backend cannot do it.
        """
        raise ValueError("questions after a compressed text need backend = 'fast'")

    @abstractmethod
    def measure(
        self,
        method: Asked,
        budget: int | None,
        prompts: Texts,
        continuations: Texts,
        full_logits: Sequence[np.ndarray] | None = None,
    ) -> list[Measured]:
        """Feed continuations and compare every step with the full cache."""


class ReferenceBackend(Backend):
    """`kvlab.reference`, one sequence after the other."""

    def __init__(self, model: str | Path) -> None:
        self.model = Transformer.from_directory(Path(model))
        self.tokenizer = load_tokenizer(Path(model))

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)

    def write(
        self,
        method: Asked,
        budget: int | None,
        prompts: Texts,
        limit: int,
        stop: int | None,
        solutions: Texts | None = None,
        block_size: int | None = None,
    ) -> tuple[list[list[int]], float]:
        policy, started = policy_of(method, budget), time.perf_counter()
        written = [
            list(
                generate(
                    self.model,
                    policy,
                    prompt,
                    limit,
                    stop,
                    block_size=block_size,
                    solution=solution,
                ).tokens
            )
            for prompt, solution in zip(prompts, solutions or [None] * len(prompts), strict=True)
        ]
        return written, (time.perf_counter() - started) / sum(map(len, written))

    def measure(
        self,
        method: Asked,
        budget: int | None,
        prompts: Texts,
        continuations: Texts,
        full_logits: Sequence[np.ndarray] | None = None,
    ) -> list[Measured]:
        policy = policy_of(method, budget)
        yardsticks = [None] * len(prompts) if full_logits is None else full_logits
        return [
            teacher_forced(self.model, policy, prompt, tokens, full)
            for prompt, tokens, full in zip(prompts, continuations, yardsticks, strict=True)
        ]


class FastBackend(Backend):
    """`kvlab.fast`: many problems in one left-padded batch, on a GPU if there is one."""

    def __init__(self, model: str | Path) -> None:
        from kvlab.fast.models.loading import load

        network, self.tokenizer = load(model, dtype="auto")
        self.model: Any = network

    def encode(self, text: str) -> list[int]:
        return self.tokenizer(text)["input_ids"]  # type: ignore[return-value]

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)  # type: ignore

    def write(
        self,
        method: Asked,
        budget: int | None,
        prompts: Texts,
        limit: int,
        stop: int | None,
        solutions: Texts | None = None,
        block_size: int | None = None,
    ) -> tuple[list[list[int]], float]:
        from kvlab.fast import compress
        from kvlab.fast.lab.generation import decoding_options
        from kvlab.fast.lab.measure import left_padded

        ids, real = left_padded(prompts, self.model.device)
        options = {**decoding_options(self.model, limit), "eos_token_id": stop}
        started = time.perf_counter()
        if solutions is not None:
            options["stopping_criteria"] = [FirstError(ids.shape[1], solutions)]
        with compress(self.model, method, budget, block_size) as cache:
            result = self.model.generate(
                ids, attention_mask=real.long(), past_key_values=cache, **options
            )
        seconds = time.perf_counter() - started
        written = [until(row, stop) for row in result[:, ids.shape[1] :].tolist()]
        written = to_first_error(written, solutions)
        return written, seconds / sum(map(len, written))

    def write_after(
        self,
        method: Asked,
        budget: int | None,
        text: Sequence[int],
        questions: Texts,
        limit: int,
        stop: int | None,
        solutions: Texts | None = None,
        block_size: int | None = None,
    ) -> tuple[list[list[int]], float]:
        from kvlab.fast import methods as fast_methods
        from kvlab.fast.lab.evaluate.asking import answer_after

        policy, started = fast_methods.port(policy_of(method, budget)), time.perf_counter()
        written = answer_after(
            self.model, policy, text, questions, limit, stop, block_size, solutions
        )
        return written, (time.perf_counter() - started) / sum(map(len, written))

    def measure(
        self,
        method: Asked,
        budget: int | None,
        prompts: Texts,
        continuations: Texts,
        full_logits: Sequence[np.ndarray] | None = None,
    ) -> list[Measured]:
        from kvlab.fast import methods as fast_methods
        from kvlab.fast.lab import measure

        policy = fast_methods.port(policy_of(method, budget))
        return measure.teacher_forced(self.model, policy, prompts, continuations, full_logits)


class FirstError:
    """Says which rows of a batch have left their solution; ``generate`` asks after each token."""

    def __init__(self, start: int, solutions: Texts) -> None:
        """Expect answers from the column ``start`` on."""
        self.start, self.solutions = start, solutions
        self.left = [False] * len(solutions)

    def __call__(self, tokens: Any, scores: Any, **_: Any) -> Any:
        """Return whether each row of ``tokens`` ``[rows, columns]`` is done."""
        place = tokens.shape[1] - self.start - 1
        for row, (token, solution) in enumerate(
            zip(tokens[:, -1].tolist(), self.solutions, strict=True)
        ):
            self.left[row] |= place >= len(solution) or token != solution[place]
        return tokens.new_tensor(self.left) > 0


def policy_of(method: Asked, budget: int | None) -> Policy:
    """Build the policy of a method; a policy stays as it is."""
    return methods.get(method, budget) if isinstance(method, str) else method


def to_first_error(written: Texts, solutions: Texts | None) -> list[list[int]]:
    """Cut each answer after its first token that is not that of its solution."""
    if solutions is None:
        return [list(tokens) for tokens in written]
    return [
        list(tokens[: right_tokens(tokens, solution) + 1])
        for tokens, solution in zip(written, solutions, strict=True)
    ]


def right_tokens(tokens: Sequence[int], solution: Sequence[int]) -> int:
    """Return how many tokens an answer and a solution have in common from their start."""
    pairs = zip(tokens, solution, strict=False)
    return next((i for i, (one, other) in enumerate(pairs) if one != other), len(solution))


def until(tokens: list[int], stop: int | None) -> list[int]:
    """Return the tokens up to the first ``stop``, with it."""
    return tokens[: tokens.index(stop) + 1] if stop in tokens else tokens
