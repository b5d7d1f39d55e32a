"""What runs a comparison: the NumPy reference, or the same policies in PyTorch."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvlab.fast.models import stored_directory
from kvlab.reference.checks import check_choice
from kvlab.reference.generate import generate
from kvlab.reference.measure import Measurement, attended_to_all, teacher_forced
from kvlab.reference.policy import Policy
from kvlab.reference.step import Block, StepResult
from kvlab.reference.transformer import Transformer, load_tokenizer

Texts = Sequence[Sequence[int]]

Logits = Sequence[np.ndarray] | None
"""What a run with the full cache returned for each text; None: this run is the yardstick."""

Measured = tuple[Measurement, np.ndarray]

NAMES = ("fast", "reference")

READ_EVERY = 16
"""Tokens of an answer between two reads; at each the host waits for the device."""

AS_STORED = "as stored"
"""Number format of a model whose configuration names none."""


def default_backend() -> str:
    """Return ``fast`` where PyTorch and transformers are installed, else ``reference``."""
    return "fast" if find_spec("torch") and find_spec("transformers") else "reference"


def load_backend(name: str, model: str | Path, *how: str | None) -> "Backend":
    """Load a model; ``how`` goes to `kvlab.fast.models.loading.load`, where the backend is fast."""
    check_choice(NAMES, backend=name)
    return FastBackend(model, *how) if name == "fast" else ReferenceBackend(model)


def versions_of(backend: str) -> str:
    """Return the packages that compute with their versions, but not for which device they are."""
    names = ("torch", "transformers") if backend == "fast" else ("numpy",)
    return ", ".join(f"{each} {version(each).partition('+')[0]}" for each in names)


def devices_of(asked: str | None) -> list[Any]:
    """Return the devices that commas separate, or all GPUs, or the CPU, for workers to share.

    ValueError if one is not there, or they are of several kinds.
    """
    import torch

    from kvlab.fast.models.loading import find_device

    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    found = [find_device(each) for each in (asked.split(",") if asked else gpus or ["cpu"])]
    if len(kinds := {device_name(each) for each in found}) > 1:
        raise ValueError(
            f"device = {asked or 'all GPUs'} must be of one kind, because results of different "
            f"devices do not mix, got {', '.join(sorted(kinds))}"
        )
    return found


def device_here(backend: str, asked: str | None = None) -> str:
    """Return what computes on this machine: ``cpu``, or the name of the GPUs."""
    return "cpu" if backend == "reference" else device_name(devices_of(asked)[0])


def device_name(device: Any) -> str:
    """Return a GPU's name, or the kind of another device."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def dtype_of(model: str | Path, backend: str, asked: str = "auto") -> str:
    """Return the number format in which a backend loads a model, without loading it."""
    if backend == "reference":
        return "float64"
    if asked != "auto":
        return asked
    from kvlab.fast.models.loading import load_configuration

    dtype = load_configuration(model).dtype
    return AS_STORED if dtype is None else str(dtype).removeprefix("torch.")


WHAT_MATTERS = ("config", "generation_config", "tokenizer", "special_tokens", "added_tokens")
"""Beginnings of the names of files, besides the weights, that change what a model writes."""


def fingerprint(location: str) -> str:
    """Hash model and tokenizer in a directory; return an id on the hub with its commit."""
    directory = Path(location)
    if not directory.is_dir():
        stored = stored_directory(location)
        return f"{location.partition('@')[0]}@{Path(stored).name}" if stored else location
    total = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.name.startswith(WHAT_MATTERS) or path.suffix == ".safetensors":
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            total.update(f"{path.name} {digest}\n".encode())
    return total.hexdigest()[:24]


def load_encoder(model: str | Path, backend: str) -> Callable[[str], list[int]]:
    """Return what turns text into token ids, without loading the model."""
    if backend == "reference" or Path(model).is_dir():
        tokenizer = load_tokenizer(model)
        return lambda text: tokenizer.encode(text).ids
    from kvlab.fast.models.loading import load_tokenizer_of

    found = load_tokenizer_of(model)
    return lambda text: found(text)["input_ids"]


@dataclass(frozen=True)
class Request:
    """Prompts that a model continues greedily, in one batch."""

    prompts: Texts
    limit: int
    stop: int | None
    """Token that ends an answer; None: only the limit does."""
    solutions: Texts | None = None
    """Right answers; an answer ends with its first token that differs from them."""
    block_size: int | None = None
    """Tokens per block of a prompt; None reads a prompt at once."""
    text: Sequence[int] = ()
    """What is read and compressed before the prompts, which are questions about it, are known."""

    def length(self, row: int, written: Sequence[int]) -> int | None:
        """Return how many tokens are the answer to a prompt; None if it has not ended."""
        right = written if self.solutions is None else self.solutions[row]
        for count, token in enumerate(written, start=1):
            wrong = [token] != list(right[count - 1 : count])
            if token == self.stop or wrong or count == self.limit:
                return count
        return None


class Answer(NamedTuple):
    """What was written after a prompt."""

    tokens: list[int]
    first_eviction: int | None
    """As `kvlab.fast.CompressedCache.first_evictions` says, of text, prompt and answer."""


class Backend(ABC):
    """A loaded model that writes and measures under any policy."""

    tokenizer: Any

    encode: Callable[[str], list[int]]

    device: str
    """As `device_name` says it; several are separated by commas."""
    dtype: str

    def decode(self, tokens: Sequence[int]) -> str:
        """Return text, special tokens included."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)

    @abstractmethod
    def write(self, policy: Policy, request: Request) -> list[Answer]:
        """Return what is written after each prompt; ValueError if the policy does not fit them."""

    @abstractmethod
    def measure(
        self, policy: Policy, prompts: Texts, continuations: Texts, full_logits: Logits = None
    ) -> list[Measured]:
        """Feed continuations and compare every step with the full cache."""


class ReferenceBackend(Backend):
    """`kvlab.reference`, one sequence after the other."""

    def __init__(self, model: str | Path) -> None:
        self.model = Transformer.from_directory(Path(model))
        self.tokenizer = load_tokenizer(Path(model))
        self.device, self.dtype = device_here("reference"), dtype_of(model, "reference")
        self.encode = load_encoder(model, "reference")

    def write(self, policy: Policy, request: Request) -> list[Answer]:
        if request.text:
            raise ValueError("questions after a compressed text need backend = 'fast'")
        return [self._answer(policy, request, row) for row in range(len(request.prompts))]

    def _answer(self, policy: Policy, request: Request, row: int) -> Answer:
        whole: list[float] = []

        def watch(block: Block, result: StepResult) -> None:
            whole.append(attended_to_all(policy, block, result))

        written = generate(
            self.model,
            policy,
            request.prompts[row],
            request.limit,
            request.stop,
            solution=request.solutions[row] if request.solutions else None,
            block_size=request.block_size,
            watch=watch,
        )
        first = min(whole)
        return Answer(list(written.tokens), None if math.isinf(first) else int(first))

    def measure(
        self, policy: Policy, prompts: Texts, continuations: Texts, full_logits: Logits = None
    ) -> list[Measured]:
        yardsticks = [None] * len(prompts) if full_logits is None else full_logits
        return [
            teacher_forced(self.model, policy, prompt, tokens, full)
            for prompt, tokens, full in zip(prompts, continuations, yardsticks, strict=True)
        ]


class FastBackend(Backend):
    """`kvlab.fast`: many problems in one left-padded batch, on a GPU if there is one."""

    def __init__(self, model: str | Path, *how: Any) -> None:
        from kvlab.fast.models.loading import load

        network, self.tokenizer = load(model, *how)
        self.model: Any = network
        placed = (each.device for each in network.parameters())
        devices = dict.fromkeys(each for each in placed if each.type != "meta")  # fetched when used
        self.device = ", ".join(dict.fromkeys(map(device_name, devices)))
        self.dtype = str(network.dtype).removeprefix("torch.")
        self.encode = lambda text: self.tokenizer(text)["input_ids"]

    def write(self, policy: Policy, request: Request) -> list[Answer]:
        """Continue the prompts; after a text, a prompt counts as generated, as every turn does.

        Answers are read every `READ_EVERY` tokens, and those that have ended leave the batch.
        """
        import torch

        from kvlab.fast import compress
        from kvlab.fast.lab.measure import left_padded

        ids, real = left_padded(request.prompts, self.model.device)
        rows, written, answers = [*range(len(ids))], ids[:, :0], dict[int, Answer]()
        with (
            torch.inference_mode(),
            compress(self.model, policy, block_size=request.block_size) as cache,
        ):
            if request.text:
                self._read_for_all(request.text, cache, len(ids))
                real = torch.cat([real.new_ones(len(ids), len(request.text)), real], dim=1)
            logits = self.model(
                ids, attention_mask=real.long(), past_key_values=cache, logits_to_keep=1
            ).logits
            while True:
                tokens = logits[:, -1].argmax(-1, keepdim=True)
                written = torch.cat([written, tokens], dim=1)
                if written.shape[1] % READ_EVERY == 0 or written.shape[1] == request.limit:
                    going = []
                    for place, (row, found) in enumerate(zip(rows, written.tolist(), strict=True)):
                        if (count := request.length(row, found)) is None:
                            going.append(place)
                            continue
                        first = cache.first_evictions[place]
                        fed = len(request.text) + len(request.prompts[row]) + count - 1
                        first = None if first is None or first > fed else first
                        answers[row] = Answer(found[:count], first)
                    if not going:
                        return [answers[row] for row in range(len(ids))]
                    if len(going) < len(rows):
                        kept = ids.new_tensor(going)
                        rows = [rows[place] for place in going]
                        tokens, written = tokens[kept], written[kept]
                        cache.reorder_cache(kept)
                logits = self.model(tokens, past_key_values=cache).logits

    def _read_for_all(self, text: Sequence[int], cache: Any, rows: int) -> None:
        import torch

        if len(text) < 2:
            raise ValueError(f"a text of {len(text)} tokens must hold at least two")
        ids = torch.tensor([list(text)], device=self.model.device)
        self.model(ids[:, :-1], past_key_values=cache, logits_to_keep=1)
        self.model(ids[:, -1:], past_key_values=cache)  # a prompt ends where one token follows
        cache.batch_repeat_interleave(rows)

    def measure(
        self, policy: Policy, prompts: Texts, continuations: Texts, full_logits: Logits = None
    ) -> list[Measured]:
        from kvlab.fast.lab import measure

        return measure.teacher_forced(self.model, policy, prompts, continuations, full_logits)
