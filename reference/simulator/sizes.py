"""The sizes of a decoder and the peak of a GPU: what memory and time depend on."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from kvlab.reference.checks import check_at_least
from kvlab.reference.files import read_data
from kvlab.reference.transformer import ModelConfig, read_json

WIDE = 2
"""Bytes of a 16-bit number."""


@dataclass(frozen=True)
class Shape:
    """A Llama-like decoder: grouped attention and a gated feed-forward network.

    Raises:
        ValueError: if a size is below 1, or KV heads do not divide the query heads.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool = False
    """Whether input and output embedding are one matrix."""
    qkv_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        sizes = {f.name: getattr(self, f.name) for f in fields(self) if f.type is int}
        check_at_least(1, **sizes)
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads = {self.kv_heads} must divide the {self.heads} query heads")

    @property
    def group(self) -> int:
        """Query heads per KV head, ρ."""
        return self.heads // self.kv_heads

    @property
    def projections(self) -> int:
        """Weights of one layer's four attention projections."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        biases = queries + 2 * keys if self.qkv_bias else 0
        return self.hidden * (2 * queries + 2 * keys) + biases

    @property
    def feed_forward(self) -> int:
        """Weights of one layer's gated feed-forward network."""
        return 3 * self.hidden * self.intermediate

    @property
    def parameters(self) -> int:
        """Weights of the whole model."""
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        per_layer = self.projections + self.feed_forward + norms
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * per_layer + embeddings + self.hidden

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in 16 bits."""
        return WIDE * self.parameters

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in 16 bits, all layers and heads."""
        return WIDE * 2 * self.layers * self.kv_heads * self.head_dim


KNOWN = read_data("simulator/sizes.toml")

SHAPES: Mapping[str, Shape] = {name: Shape(name, **x) for name, x in KNOWN["shapes"].items()}
"""Models of the papers by name; DS-Llama-8B is llama-3.1-8b, DS-Qwen-7B is qwen2.5-7b."""


def find_shape(model: str) -> Shape:
    """Return the sizes of a known model, or of a Hugging Face ``config.json`` or its directory.

    Raises:
        FileNotFoundError: if it is neither.
        ValueError: if the file is no JSON object, or no configuration of a decoder.
    """
    if model.lower() in SHAPES:
        return SHAPES[model.lower()]
    path = Path(model)
    if not path.exists():
        raise FileNotFoundError(
            f"model = {model!r} must be a config.json, its directory, or one of {', '.join(SHAPES)}"
        )
    path = path / "config.json" if path.is_dir() else path
    config = read_json(path)
    # The kind of RoPE changes no size, and Phi 3 has those of Llama.
    config |= {"rope_parameters": None, "rope_scaling": None}
    if config.get("model_type") == "phi3":
        config["model_type"] = "llama"
    try:
        found = ModelConfig.from_dict(config)
        sizes = {mine: getattr(found, its) for mine, its in KNOWN["config"].items()}
        return Shape(path.parent.resolve().name, **sizes)
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{path} is no dense decoder that attends to all: {error}") from None


@dataclass(frozen=True)
class Hardware:
    """One accelerator, at its peak."""

    name: str
    memory: float
    """Bytes."""
    bandwidth: float
    """Bytes of its memory per second."""
    flops: float
    """Dense 16-bit floating-point operations per second, a multiplication and an addition two."""
    source: str


HARDWARE: Mapping[str, Hardware] = {name: Hardware(**x) for name, x in KNOWN["gpus"].items()}
"""GPUs by the name that `kvlab plan --gpu` takes."""

LAUNCHES: Mapping[str, int] = KNOWN["launches"]
"""Kernels that PyTorch and Triton launch for a token of a Llama of `COUNTED_LAYERS` layers, as
``docs/study/count_launches.py`` counts them; ``full`` is transformers' own cache."""
COUNTED_LAYERS = 32
