"""The NumPy decoder against transformers, on tiny random models and on real ones."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kvlab.reference import methods
from kvlab.reference.generate import advance, start
from kvlab.reference.models import reasoner_directory
from kvlab.reference.tasks import reasoning
from kvlab.reference.transformer import ModelConfig, Transformer, load_tokenizer
from support.refused import refused
from support.sampling import sampled
from support.tables import known, listed
from support.tolerances import FLOAT32_LOGITS, FLOAT64

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "max_position_embeddings": 256,
}
CASES = {name: (family, known(x)) for name, family, x in listed(__file__, "models")}


def save(directory: Path, case: str):
    family, options = CASES[case]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES, **options)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    model.to(getattr(torch, options.get("dtype", "float32"))).save_pretrained(directory)


def logits_of(directory: Path, tokens) -> np.ndarray:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        return model.eval()(torch.tensor([list(tokens)])).logits[0].numpy()


def reference_logits(model: Transformer, tokens, sizes=(None,)) -> np.ndarray:
    session = start(model, methods.get("full"), len(tokens))
    rows, first = [], 0
    for size in sizes:
        last = len(tokens) if size is None else first + size
        logits, session = advance(session, tokens[first:last])
        rows.append(logits)
        first = last
    return np.concatenate(rows)


def difference(directory: Path, tokens) -> float:
    ours = reference_logits(Transformer.from_directory(directory), tokens)
    return float(np.abs(ours - logits_of(directory, tokens)).max())


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    directory = tmp_path_factory.mktemp("llama")
    save(directory, "llama-gqa")
    return directory


TOKENS = [int(token) for token in np.random.default_rng(0).integers(0, 61, size=70)]


@pytest.mark.parametrize("case", sampled(CASES, [*CASES][1::2]))
def test_logits_agree_with_transformers(case, tmp_path):
    save(tmp_path, case)
    assert difference(tmp_path, TOKENS) < FLOAT32_LOGITS


def test_sharded_checkpoints_are_put_together(llama, tmp_path):
    whole = Transformer.from_directory(llama).weights
    tensors = load_file(llama / "model.safetensors")
    files = {name: f"model-{number % 3}.safetensors" for number, name in enumerate(tensors)}
    for file in set(files.values()):
        part = {name: tensors[name] for name in tensors if files[name] == file}
        save_file(part, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    shutil.copy(llama / "config.json", tmp_path)
    sharded = Transformer.from_directory(tmp_path).weights
    assert whole.keys() == sharded.keys()
    assert all((whole[name] == sharded[name]).all() for name in whole)


def test_the_comparison_can_fail(llama):
    model = Transformer.from_directory(llama)
    weights = {**model.weights, "model.norm.weight": model.weights["model.norm.weight"] * 1.001}
    ours = reference_logits(Transformer(model.config, weights), TOKENS)
    assert np.abs(ours - logits_of(llama, TOKENS)).max() > FLOAT32_LOGITS


def test_the_embedded_model_agrees():
    """After every token that the model continues. Inside the prompt its outputs are not trained,
    and transformers' own float32 is up to 5e-4 off its float64 there."""
    model = Transformer.from_directory(reasoner_directory())
    for problem in reasoning.held_out(6):
        tokens = load_tokenizer(reasoner_directory()).encode(problem.text).ids[:-1]
        first = len(problem.prompt.split(" ")) - 1
        theirs = logits_of(reasoner_directory(), tokens)[first:]
        ours = reference_logits(model, tokens)[first:]
        assert np.abs(ours - theirs).max() < FLOAT32_LOGITS
        assert (ours.argmax(axis=1) == [*tokens[first + 1 :], ours[-1].argmax()]).all()


def test_blocks_of_any_size_give_the_same_logits(tmp_path):
    save(tmp_path, "qwen3")
    model = Transformer.from_directory(tmp_path)
    once = reference_logits(model, TOKENS)
    split = reference_logits(model, TOKENS, (30, 1, 7, None))
    np.testing.assert_allclose(once, split, rtol=0, atol=FLOAT64)


# --- bad input -----------------------------------------------------------------------------------


@refused(__file__, "files")
def test_corrupt_files(bad, message, llama, tmp_path):
    shutil.copytree(llama, tmp_path, dirs_exist_ok=True)
    name, content = eval(bad)
    path = tmp_path / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content(path.read_bytes() if path.exists() else b""))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        Transformer.from_directory(tmp_path)


UP = "model.layers.1.mlp.up_proj.weight"


@refused(__file__, "tensors")
def test_wrong_tensors(bad, message, llama, tmp_path):
    tensors = load_file(llama / "model.safetensors")
    eval(bad)
    save_file(tensors, tmp_path / "model.safetensors")
    shutil.copy(llama / "config.json", tmp_path)
    with pytest.raises(ValueError, match=f"'{UP}' {message}"):
        Transformer.from_directory(tmp_path)


@refused(__file__)
def test_unsupported_configurations(bad, message):
    config = {"model_type": "llama", **SIZES, **eval(f"dict({bad})")}
    config = {key: value for key, value in config.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict(config)


def test_a_window_that_is_switched_off_is_accepted():
    config = {"model_type": "qwen2", **SIZES, "sliding_window": 8, "use_sliding_window": False}
    assert ModelConfig.from_dict(config).layers == SIZES["num_hidden_layers"]


@pytest.mark.parametrize("tokens", [[61], [-1], []])
def test_tokens_outside_the_vocabulary(tokens, llama):
    model = Transformer.from_directory(llama)
    with pytest.raises(ValueError, match="token ids must be between 0 and 60"):
        model.forward(np.array(tokens, dtype=np.int64), 0, lambda layer, q, k, v, x: q)
