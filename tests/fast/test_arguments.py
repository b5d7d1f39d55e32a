"""Every argument of a model's ``forward`` reaches the computation, or is refused by its name."""

import copy
import tomllib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig

from kvlab.fast import compress
from kvlab.fast.huggingface.arguments import check_past
from kvlab.fast.huggingface.attaching import implementation
from kvlab.fast.huggingface.stream_clock import StreamClock
from support.architectures import (
    ALTERNATING,
    SMALL_EXPERTS,
    gemma3_with_vision,
    qwen_with_vision,
    text_model,
)
from support.models import prompts
from support.sampling import sampled
from support.tables import cases
from support.tolerances import FLOAT32_LOGITS

LENGTH, BLOCK = 6, 4
ROBERTA = {"is_decoder": True, "pad_token_id": 1}
ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "Llama": lambda: text_model("llama", "LlamaConfig"),
    "Qwen3": lambda: text_model("qwen3", "Qwen3Config"),
    "Mixtral": lambda: text_model("mixtral", "MixtralConfig", **SMALL_EXPERTS),
    "Cohere2": lambda: text_model("cohere2", "Cohere2Config", **ALTERNATING),
    "GPT-2": lambda: text_model("gpt2", "GPT2Config"),
    "OPT": lambda: text_model("opt", "OPTConfig", ffn_dim=96, word_embed_proj_dim=64),
    "RoBERTa": lambda: text_model("roberta", "RobertaConfig", **ROBERTA, type_vocab_size=2),
    "LFM2": lambda: text_model("lfm2", "Lfm2Config", layer_types=["conv", "full_attention"] * 2),
    "Gemma 3 with images": gemma3_with_vision,
    "Qwen 2.5 with images": qwen_with_vision,
}
made = cache(lambda name: ARCHITECTURES[name]())


@dataclass
class Call:
    """A call of a model with the tokens ``ids``, after ``held`` others."""

    model: Any
    ids: Tensor
    held: int

    @property
    def places(self) -> Tensor:
        return torch.arange(self.held, self.held + self.ids.shape[1])[None] + 2

    def mask(self, *zeros: int) -> Tensor:
        shape = len(self.ids), self.held + self.ids.shape[1]
        return torch.ones(shape, dtype=torch.long).index_fill(1, torch.tensor(zeros).long(), 0)

    @property
    def embeds(self) -> Tensor:
        return self.model.get_input_embeddings()(self.ids).detach()

    @property
    def types(self) -> Tensor:
        """Gemma 3 lets tokens of type 1 read later ones, which is refused as a mask."""
        return self.ids % 2 * ("pixel_values" not in signature(self.model.forward).parameters)


@dataclass
class Case:
    """Values of an argument, and what refuses them; None: they are computed with."""

    argument: str
    given: str
    """An expression of the ``call``."""
    refused: str | None = None
    in_blocks: str | None = None
    """What refuses them in a prompt longer than a block; None: the same as at once."""
    tokens: str = "many one"
    """In which calls the values mean this: of a prompt, or of one token after it."""
    more: dict[str, str] = field(default_factory=dict)
    """Other arguments that they need."""

    def arguments(self, call: Call) -> dict[str, Any]:
        given = {self.argument: self.given, **self.more}
        return {name: eval(x, globals() | {"call": call}) for name, x in given.items()}


TABLE = tomllib.loads(Path(__file__).with_name("arguments.toml").read_text("utf-8"))
CASES = [Case(argument, **row) for argument, rows in TABLE.items() for row in rows]
"""All arguments but those of images, which `test_architectures` gives and refuses."""

IMAGES = {
    *("pixel_values", "pixel_values_videos", "image_grid_thw", "video_grid_thw"),
    *("mm_token_type_ids", "second_per_grid_ts"),
}


def refusal_of(case: Case, model: Any, in_blocks: bool) -> str | None:
    taken = signature(model.forward).parameters
    if case.argument == "token_type_ids" and "token_type_ids" not in taken:
        return "token_type_ids is no argument of"
    return case.refused or (case.in_blocks if in_blocks else None)


def calls(model: Any) -> Iterator[tuple[str, Tensor | None, Call]]:
    ids = prompts([LENGTH + 1] * 2, seed=3)["input_ids"] % 80 + 3
    yield "many", None, Call(model, ids[:, :LENGTH], 0)
    yield "one", ids[:, :LENGTH], Call(model, ids[:, LENGTH:], LENGTH)


def read(model: Any, cache: Any, before: Tensor | None, ids: Tensor, **arguments: Any) -> dict:
    """Return what a call gives after a text, without the cache."""
    with torch.no_grad():
        if before is not None:
            model(input_ids=before, past_key_values=cache)
        out = model(**{"input_ids": ids, "past_key_values": cache, **arguments})
    return {name: value for name, value in out.items() if name != "past_key_values"}


def same(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    scale = float(expected["logits"].std())
    torch.testing.assert_close(
        found, expected, rtol=FLOAT32_LOGITS, atol=FLOAT32_LOGITS * scale, equal_nan=True
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_table_has_every_argument(name):
    taken = signature(made(name).forward).parameters
    named = {one.name for one in taken.values() if one.kind is not one.VAR_KEYWORD}
    assert named - IMAGES <= {case.argument for case in CASES}


@pytest.mark.parametrize(
    ("name", "block_size"),
    sampled(product(ARCHITECTURES, [None, BLOCK]), [("Llama", BLOCK), ("Cohere2", None)]),
)
def test_an_argument_is_computed_with_as_the_model_alone_does_or_refused(name, block_size):
    model = made(name)
    for tokens, before, call in calls(model):
        tried, alone = [], lambda: DynamicCache(config=model.config)
        plain = read(model, alone(), before, call.ids)
        for case in CASES:
            if tokens in case.tokens:
                message = refusal_of(case, model, tokens == "many" and block_size is not None)
                arguments = case.arguments(call)
                expected = message or read(model, alone(), before, call.ids, **arguments)
                tried.append((arguments, expected))
        with compress(model, "full", block_size=block_size) as held:
            for arguments, expected in tried:
                held.reset()
                if not isinstance(expected, str):
                    same(read(model, held, before, call.ids, **arguments), expected)
                    continue
                if before is not None:
                    model(input_ids=before, past_key_values=held)
                with pytest.raises(ValueError, match=expected):
                    read(model, held, None, call.ids, **arguments)
                same(read(model, held, None, call.ids), plain)


# --- flags of the configuration ---


def configured(name: str, **flags: Any) -> Any:
    """A model whose configuration has flags; the model alone returns the same as with arguments."""
    model = copy.deepcopy(made(name))
    for flag, value in flags.items():
        setattr(model.config.get_text_config(decoder=True), flag, value)
    return model


@pytest.mark.parametrize("flag", ["output_attentions", "use_cache", "return_dict"])
@pytest.mark.parametrize("name", ["Llama", "Gemma 3 with images"])
def test_what_is_refused_as_an_argument_is_refused_in_a_configuration(name, flag):
    value = flag == "output_attentions"
    with implementation(made(name), "eager"):
        model = configured(name, **{flag: value})
    message = f"{flag} = {value} in the model's configuration"
    with pytest.raises(ValueError, match=f"^{message}"), compress(model, "full"):
        pass
    model, ids = configured(name), prompts([LENGTH])["input_ids"]
    with compress(model, "full") as held, implementation(model, "eager"):
        setattr(model.config.get_text_config(decoder=True), flag, value)
        with pytest.raises(ValueError, match=f"^{message}"):
            model(ids, past_key_values=held)
    assert held.get_seq_length() == 0


@pytest.mark.parametrize("flag", ["output_hidden_states", "output_router_logits"])
def test_outputs_of_every_token_are_asked_for_by_argument_or_configuration(flag):
    model, ids = configured("Mixtral", **{flag: True}), prompts([LENGTH])["input_ids"]
    expected = read(model, DynamicCache(config=model.config), None, ids)
    assert flag.removeprefix("output_") in expected
    with compress(model, "full") as held:
        same(read(model, held, None, ids), expected)
    with compress(model, "full", block_size=BLOCK) as held:
        with pytest.raises(ValueError, match=f"^{flag} = True in the model's configuration"):
            read(model, held, None, ids)
        assert read(model, held, None, ids, **{flag: False})["logits"].shape[1] == LENGTH


@pytest.mark.parametrize("kept", ["argument", "generation_config", "the model's own"])
@cases(__file__, "generate_takes_a_flag_alike_from_everywhere", "flag value message")
def test_generate_takes_a_flag_alike_from_everywhere(flag, value, message, kept):
    model, options = copy.deepcopy(made("Llama")), {"return_dict_in_generate": True}
    if kept == "argument":
        options[flag] = value
    elif kept == "generation_config":
        options = {"generation_config": GenerationConfig(**options, **{flag: value})}
    else:
        setattr(model.generation_config, flag, value)
    with (
        compress(model, "full", block_size=BLOCK) as held,
        pytest.raises(ValueError, match=message),
    ):
        model.generate(**prompts([LENGTH]), past_key_values=held, max_new_tokens=3, **options)


def test_a_hybrid_cache_that_a_model_comes_with_is_no_other_cache():
    model = copy.deepcopy(made("Cohere2"))
    model.generation_config.cache_implementation = "hybrid"
    written = []
    for policy in (None, "full"):
        with compress(model, policy) if policy else nullcontext() as held:
            inputs = prompts([LENGTH])
            written.append(model.generate(**inputs, past_key_values=held, max_new_tokens=3))
    assert written[0].equal(written[1])


# --- masks of what is in the cache ---


@pytest.mark.parametrize("name", ["Llama", "Cohere2"])
def test_a_call_without_a_mask_reads_no_padding(name):
    """In no layer: those with a sliding window are left alone, and have no positions of padding."""
    model, inputs = made(name), prompts([LENGTH, 4])
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    new, found = ids[:, -3:], []
    for more in ({}, {"attention_mask": torch.cat([mask, mask[:, -3:]], dim=1)}):
        for piece in (new, new[:, :1]):
            with compress(model, "full") as held, torch.no_grad():
                model(**inputs, past_key_values=held)
                grown = {name: x[:, : LENGTH + piece.shape[1]] for name, x in more.items()}
                found.append(model(piece, past_key_values=held, **grown).logits)
    torch.testing.assert_close(found[:2], found[2:], rtol=0, atol=0)


def test_on_an_accelerator_the_mask_of_a_single_token_is_judged_later():
    """Where nobody waits for the device: at the context's end, before the next text, in a file."""
    model, ids = made("Llama"), prompts([LENGTH])["input_ids"]
    clock = StreamClock(records_confidence=False)
    clock.begin([LENGTH], "meta")
    clock.note_call(ids.to("meta"), None, from_user=True)
    clock.advance(None, LENGTH)
    clock.columns = LENGTH
    check_past(clock, torch.ones(1, LENGTH + 1, device="meta"), 1)  # has no values to wait for
    (message,) = clock.noted
    held = compress(model, "full")
    read(model, held, None, ids)
    for wrong in (False, True, False):
        held.text.clock.note(message, torch.tensor(wrong))
    fork, later = held.copy(), "^attention_mask of a single token is not the mask of the text"
    for use in (fork.check, lambda: read(model, held, None, ids), lambda: held.save("never")):
        with pytest.raises(ValueError, match=later):
            use()
    assert held.get_seq_length() == LENGTH
    with pytest.raises(ValueError, match=later), held:
        pass
    held.reset()
    held.check()
