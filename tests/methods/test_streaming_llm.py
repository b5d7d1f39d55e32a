import numpy as np

from kvlab.reference import methods
from kvlab.reference.transformer import ModelConfig, Transformer
from support.tolerances import FLOAT32_ANGLES, FLOAT64


def tiny_model() -> Transformer:
    config = ModelConfig.from_dict(
        {
            "model_type": "llama",
            "vocab_size": 11,
            "hidden_size": 8,
            "intermediate_size": 12,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        }
    )
    rng = np.random.default_rng(1)
    return Transformer(config, {name: rng.normal(size=s) for name, s in config.shapes().items()})


def test_repositioned_keys_make_the_output_independent_of_how_much_was_dropped():
    """Inside the cache only the order counts, so an output depends on the kept tokens alone.

    One layer, no sinks: the last 4 tokens are the cache, wherever they stand in the text.
    """
    model = tiny_model()
    policy = methods.get("streaming_llm@sinks=0,reposition=true", 4)
    plain = methods.get("streaming_llm@sinks=0", 4)
    tail = [3, 1, 4, 1, 5]

    def last_logits(chosen, prompt):
        from kvlab.reference.generate import prefill

        return prefill(model, chosen, prompt, block_size=1)[0]

    short, long = [7, 7, 7, *tail], [7, 2, 7, 9, 7, 7, 2, 7, *tail]
    np.testing.assert_allclose(
        last_logits(policy, short), last_logits(policy, long), atol=FLOAT32_ANGLES
    )
    wide = [methods.get(f"streaming_llm@reposition={each}", 20) for each in ("true", "false")]
    np.testing.assert_allclose(*(last_logits(x, long) for x in wide), atol=FLOAT32_ANGLES)
    np.testing.assert_allclose(last_logits(plain, short), last_logits(plain, long), atol=FLOAT64)
    sinks = "streaming_llm@sinks=1,reposition="
    moved = [last_logits(methods.get(f"{sinks}true", 4), prompt) for prompt in (short, long)]
    stayed = [last_logits(methods.get(f"{sinks}false", 4), prompt) for prompt in (short, long)]
    np.testing.assert_allclose(moved[0], moved[1], atol=FLOAT32_ANGLES)
    assert np.abs(stayed[0] - stayed[1]).max() > 1e-4
