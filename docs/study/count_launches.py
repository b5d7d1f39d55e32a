"""Counts what a token of decoding launches on a GPU that need not be there; run as a program.

PyTorch's operations that would be kernels are counted while they run on the CPU. Triton's kernels
are counted and do not run: what they would write is zero, so that the first entry leaves. A model
of two layers and one of four tell what a layer takes, and what a model of 32 layers would.
"""

import json
import sys
from collections import Counter
from typing import Any

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from kvlab.fast import compress
from study.compile_kernels import as_on_a_gpu, ask_for_grid

LAYERS = 32
PROMPT, BUDGET = 80, 64
BEFORE, TOKENS = 60, 64
"""Tokens that are written before those that are counted, so that every method is at work."""
NO_KERNELS = {"aten.detach.default", "aten.lift_fresh.default", "aten._unsafe_view.default"}


class Launches(TorchDispatchMode):
    """Counts launches by the name of what is launched; new tensors hold zeros.

    Operations that inference mode shows whole are counted as what they are made of.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:
            out = func.decompose(*args, **kwargs)
        if out is not NotImplemented:
            return out
        out, name = func(*args, **kwargs), str(func)
        if name.startswith(("aten.empty", "aten.new_empty")):
            out.zero_()
        elif not func.is_view and name not in NO_KERNELS:
            self.found[name] += 1
        return out


def launches(layers: int, spec: str | None) -> float:
    """Return the launches of a token; of the stock model, if there is no specification."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 128,
        "intermediate_size": 96,
        "head_dim": 64,
    }
    heads: dict[str, Any] = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": layers,
    }
    config = transformers.LlamaConfig(**sizes, **heads)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    if spec is None:
        return counted(model, transformers.DynamicCache())
    name, _, budget = spec.partition("/")
    with compress(model, name, int(budget) if budget else None, verify=False) as cache:
        return counted(model, cache)


@torch.no_grad()
def counted(model: Any, cache: Any) -> float:
    """Return the launches of a token, once evictions have begun."""
    with Launches() as mode:
        model(torch.randint(3, 97, (1, PROMPT)), past_key_values=cache)
        for number in range(BEFORE + TOKENS):
            if number == BEFORE:
                mode.found.clear()
            model(torch.tensor([[5]]), past_key_values=cache)
        return mode.found.total() / TOKENS


def count_only(self: Any, *arguments: Any, warmup: bool = False, **options: Any) -> None:
    """Count a kernel in place of launching it."""
    mode = _get_current_dispatch_mode()
    assert isinstance(mode, Launches)
    mode.found[self.fn.__name__] += 1


def untuned(self: Any, *arguments: Any, **options: Any) -> None:
    """Count a kernel that would be tuned, and ask for its grid."""
    self.fn.run(*arguments, **options)
    ask_for_grid(**options, **self.configs[0].kwargs)


if __name__ == "__main__":
    as_on_a_gpu(count_only, untuned)
    for spec in (None, *sys.argv[1:]):
        two, four = launches(2, spec), launches(4, spec)
        print(json.dumps([spec, round(two + (four - two) / 2 * (LAYERS - 2))]), flush=True)
