"""A decoder of the Llama family in NumPy: Llama, Mistral, Qwen2, Qwen3.

Reads a Hugging Face directory (``config.json``, safetensors, ``tokenizer.json``) and computes in
float64. Attention over the cache is the caller's: `Transformer.forward` hands queries, keys, values
and hidden states over.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from tokenizers import Tokenizer

from kvlab.reference.notation import Array, Float, Int, NewVectors, RowVectors

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
ROPE_TYPES = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""The kinds of RoPE and the parameters that each needs."""

Heads = Float[Array, "H m d"]
Hidden = Float[Array, "m width"]
Attend = Callable[[int, Heads, NewVectors, NewVectors, Hidden], Heads]
"""Given layer, queries, keys and values of a block, and the hidden states that they are projected
from, return each head's attention output."""

Rotation = tuple[Float[Array, "... half"], Float[Array, "... half"]]
"""Cosines and sines of the angles by which RoPE turns each pair of channels."""


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of a model, by the names that this project uses."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope: Mapping[str, Any]
    tied_embeddings: bool
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    query_key_norm: bool

    @classmethod
    def from_directory(cls, directory: str | Path) -> "ModelConfig":
        """Read ``config.json``."""
        return cls.from_dict(read_json(Path(directory) / "config.json"))

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "ModelConfig":
        """Read a Hugging Face configuration."""
        get, kind = config.get, config.get("model_type")
        if kind not in MODEL_TYPES:
            raise ValueError(f"model_type = {kind!r} must be one of {', '.join(MODEL_TYPES)}")
        if get("hidden_act", "silu") != "silu":
            raise ValueError(f"hidden_act = {config['hidden_act']!r} must be 'silu'")
        slides = kind not in ("qwen2", "qwen3") or get("use_sliding_window", False)
        window = get("sliding_window", 4096 if kind == "mistral" else None)
        if slides and window is not None:
            raise ValueError(f"sliding_window = {window} must be null")
        if get("quantization_config") is not None:
            raise ValueError("quantization_config must be absent: weights are read as they are")
        try:
            heads = config["num_attention_heads"]
            kv_heads = get("num_key_value_heads") or heads
            head_dim = get("head_dim") or config["hidden_size"] // heads
            if heads % kv_heads or head_dim % 2:
                raise ValueError(
                    f"num_attention_heads = {heads} must be a multiple of num_key_value_heads = "
                    f"{kv_heads}, and head_dim = {head_dim} must be even"
                )
            llama_bias = bool(get("attention_bias", False))
            return cls(
                model_type=kind,
                vocab_size=config["vocab_size"],
                hidden_size=config["hidden_size"],
                intermediate_size=config["intermediate_size"],
                layers=config["num_hidden_layers"],
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                norm_eps=get("rms_norm_eps", 1e-6),
                rope=_rope_parameters(config),
                tied_embeddings=bool(get("tie_word_embeddings", False)),
                attention_bias=kind == "qwen2" or llama_bias,
                output_bias=kind != "qwen2" and llama_bias,
                mlp_bias=bool(get("mlp_bias", False)),
                query_key_norm=kind == "qwen3",
            )
        except KeyError as missing:
            raise ValueError(f"config.json lacks {missing}") from None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the name and shape of every tensor of the checkpoint."""
        width, d = self.hidden_size, self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, width),
            "model.norm.weight": (width,),
        }
        if not self.tied_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, width)
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            shapes[f"{prefix}input_layernorm.weight"] = (width,)
            shapes[f"{prefix}post_attention_layernorm.weight"] = (width,)
            for name, rows, columns, bias in (
                ("self_attn.q_proj", self.heads * d, width, self.attention_bias),
                ("self_attn.k_proj", self.kv_heads * d, width, self.attention_bias),
                ("self_attn.v_proj", self.kv_heads * d, width, self.attention_bias),
                ("self_attn.o_proj", width, self.heads * d, self.output_bias),
                ("mlp.gate_proj", self.intermediate_size, width, self.mlp_bias),
                ("mlp.up_proj", self.intermediate_size, width, self.mlp_bias),
                ("mlp.down_proj", width, self.intermediate_size, self.mlp_bias),
            ):
                shapes[f"{prefix}{name}.weight"] = (rows, columns)
                if bias:
                    shapes[f"{prefix}{name}.bias"] = (rows,)
            if self.query_key_norm:
                shapes[f"{prefix}self_attn.q_norm.weight"] = (d,)
                shapes[f"{prefix}self_attn.k_norm.weight"] = (d,)
        return shapes


@dataclass(frozen=True)
class Transformer:
    """A decoder and its weights, by their names in the checkpoint."""

    config: ModelConfig
    weights: Mapping[str, Array]

    @classmethod
    def from_directory(cls, directory: str | Path) -> "Transformer":
        """Load a Hugging Face directory.

        Raises:
            FileNotFoundError: if ``config.json`` or the safetensors file is not there.
            ValueError: if the configuration is not supported, or a tensor is missing, misshapen,
                not finite, or the file is corrupt.
        """
        directory = Path(directory)
        config = ModelConfig.from_directory(directory)
        tensors = _read_tensors(directory)
        weights = {}
        for name, shape in config.shapes().items():
            if name not in tensors:
                raise ValueError(f"tensor {name!r} is missing in {directory}")
            weight = tensors[name].astype(np.float64)
            if weight.shape != shape:
                raise ValueError(f"tensor {name!r} has the shape {weight.shape}, not {shape}")
            if not np.isfinite(weight).all():
                raise ValueError(f"tensor {name!r} holds NaN or infinity")
            weights[name] = weight
        return cls(config, weights)

    def forward(
        self, tokens: Int[Array, " m"], first_position: int, attend: Attend
    ) -> Float[Array, "m vocab"]:
        """Run a block of tokens through all layers and return the logits after each.

        Args:
            tokens: ids.
            first_position: absolute position of the first of them.
            attend: computes attention over the cache from rotated queries and keys.

        Raises:
            ValueError: if a token id is outside the vocabulary.
        """
        config = self.config
        if tokens.size == 0 or tokens.min() < 0 or tokens.max() >= config.vocab_size:
            raise ValueError(f"token ids must be between 0 and {config.vocab_size - 1}")
        embeddings = self.weights["model.embed_tokens.weight"]
        positions = first_position + np.arange(len(tokens))
        rotation = self._rotation(positions)
        hidden = embeddings[tokens]
        for layer in range(config.layers):
            prefix = f"model.layers.{layer}."
            x = self._norm(hidden, f"{prefix}input_layernorm")
            hidden = hidden + self._attention(layer, x, rotation, attend)
            x = self._norm(hidden, f"{prefix}post_attention_layernorm")
            hidden = hidden + self._mlp(f"{prefix}mlp.", x)
        head = embeddings if config.tied_embeddings else self.weights["lm_head.weight"]
        return self._norm(hidden, "model.norm") @ head.T

    def rotate(self, vectors: RowVectors, positions: Int[Array, "..."]) -> RowVectors:
        """Turn vectors by a number of positions (RoPE); negative numbers turn back."""
        return turn(vectors, self._rotation(positions))

    def projection(self, layer: int) -> Float[Array, "G rho d D"]:
        """Return W_O, which projects what the query heads of a layer read to the hidden state."""
        weight, config = self.weights[f"model.layers.{layer}.self_attn.o_proj.weight"], self.config
        return weight.T.reshape(config.kv_heads, -1, config.head_dim, len(weight))

    def _rotation(self, positions: Int[Array, "..."]) -> Rotation:
        # Models are trained with angles in float32, whatever precision the rest is computed in.
        angles = positions[..., None].astype(np.float32) * self._frequencies
        return np.cos(angles, dtype=np.float64), np.sin(angles, dtype=np.float64)

    def _attention(self, layer: int, x: Hidden, rotation: Rotation, attend: Attend) -> Hidden:
        config, prefix = self.config, f"model.layers.{layer}.self_attn."
        queries = self._heads(f"{prefix}q_proj", x, config.heads)
        keys = self._heads(f"{prefix}k_proj", x, config.kv_heads)
        values = self._heads(f"{prefix}v_proj", x, config.kv_heads)
        if config.query_key_norm:
            queries = self._norm(queries, f"{prefix}q_norm")
            keys = self._norm(keys, f"{prefix}k_norm")
        heads = attend(layer, turn(queries, rotation), turn(keys, rotation), values, x)
        return self._linear(f"{prefix}o_proj", heads.swapaxes(0, 1).reshape(len(x), -1))

    def _heads(self, name: str, x: Hidden, heads: int) -> Float[Array, "h m d"]:
        return self._linear(name, x).reshape(len(x), heads, -1).swapaxes(0, 1)

    def _mlp(self, prefix: str, x: Hidden) -> Hidden:
        gate = self._linear(f"{prefix}gate_proj", x)
        with np.errstate(over="ignore"):  # exp of a large number is infinite, and SiLU then 0
            silu = gate / (1 + np.exp(-gate))
        return self._linear(f"{prefix}down_proj", silu * self._linear(f"{prefix}up_proj", x))

    def _linear(self, name: str, x: Float[Array, "m inputs"]) -> Float[Array, "m outputs"]:
        product = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return product if bias is None else product + bias

    def _norm(self, x: Float[Array, "... width"], name: str) -> Float[Array, "... width"]:
        mean_square = (x * x).sum(axis=-1, keepdims=True) / x.shape[-1]
        scale = np.sqrt(mean_square + self.config.norm_eps)
        return x / scale * self.weights[f"{name}.weight"]

    @cached_property
    def _frequencies(self) -> Float[Array, " half"]:
        """RoPE's angle per position of each pair of channels."""
        rope, d = self.config.rope, self.config.head_dim
        plain = rope["rope_theta"] ** (-np.arange(0, d, 2) / d)
        if rope["rope_type"] == "linear":
            plain = plain / rope["factor"]
        if rope["rope_type"] == "llama3":  # slows the long wavelengths down, blends in between
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            turns = rope["original_max_position_embeddings"] * plain / (2 * np.pi)
            blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
            plain = (1 - blend) * plain / rope["factor"] + blend * plain
        return plain.astype(np.float32)


def turn(vectors: RowVectors, rotation: Rotation) -> RowVectors:
    """Turn vectors by the angles of a rotation; channels c and c + d/2 are a pair."""
    cos, sin = rotation
    half = vectors.shape[-1] // 2
    first, second = vectors[..., :half], vectors[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def load_tokenizer(directory: str | Path) -> Tokenizer:
    """Load the tokenizer of a model directory.

    Raises:
        FileNotFoundError: if the directory has no ``tokenizer.json``.
        ValueError: if the file is corrupt.
    """
    path = Path(directory) / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"{path} is not a valid tokenizer file: {error}") from None


def end_of_text(directory: str | Path) -> int | None:
    """Return the token that ends a model's texts, the first if there are several."""
    found = read_json(Path(directory) / "config.json").get("eos_token_id")
    every = found if isinstance(found, list) else [found]
    return every[0] if every else None


def _rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Gather RoPE's parameters from where transformers 4 and 5 put them."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope.setdefault("rope_type", rope.pop("type", "default"))
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    if rope["rope_type"] not in ROPE_TYPES:
        raise ValueError(f"rope_type = {rope['rope_type']!r} must be default, linear or llama3")
    for name in ROPE_TYPES[rope["rope_type"]]:
        if rope.get(name) is None:
            raise ValueError(f"rope_type = {rope['rope_type']!r} needs {name!r}")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"partial_rotary_factor = {rope['partial_rotary_factor']} must be 1")
    return rope


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds a JSON object."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return content


def _read_tensors(directory: Path) -> dict[str, Array]:
    """Read one safetensors file, or the shards that its index lists."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ValueError(f"{index} lacks 'weight_map'")
        files = sorted(set(weight_map.values()))
    else:
        files = ["model.safetensors"]
    tensors: dict[str, Array] = {}
    for file in files:
        path = directory / file
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist")
        try:
            entries = safetensors.deserialize(path.read_bytes())
        except safetensors.SafetensorError as error:
            raise ValueError(f"{path} is not a valid safetensors file: {error}") from None
        for name, entry in entries:
            tensors[name] = _decode(name, entry)
    return tensors


def _decode(name: str, entry: Mapping[str, Any]) -> Array:
    """Turn the bytes of a tensor into an array; bfloat16 is widened to float32."""
    kinds = {"F64": np.float64, "F32": np.float32, "F16": np.float16}
    if entry["dtype"] == "BF16":
        widened = np.frombuffer(entry["data"], dtype=np.uint16).astype(np.uint32) << 16
        return widened.view(np.float32).reshape(entry["shape"])
    if entry["dtype"] not in kinds:
        raise ValueError(f"tensor {name!r} has the unsupported dtype {entry['dtype']}")
    return np.frombuffer(entry["data"], dtype=kinds[entry["dtype"]]).reshape(entry["shape"])
