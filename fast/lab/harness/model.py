"""A Hugging Face model under a policy, as lm-evaluation-harness asks it."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Int
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from kvlab.fast import methods
from kvlab.fast.engine.policy import Policy
from kvlab.fast.huggingface import compress
from kvlab.fast.lab.evaluate.likelihood import FEEDS, grouped, likelihoods
from kvlab.fast.models.loading import load
from kvlab.reference.checks import check_at_least, check_choice
from kvlab.reference.selection import budget_entries

log = logging.getLogger(__name__)

Request = tuple[Any, list[int], list[int]]
"""Texts or None, ids of the context, ids of the continuation."""


Base: Any = HFLM
"""The decorator of lm-eval's class hides the type of the class."""


class CompressedLM(Base):
    """lm-eval's Hugging Face model with a compressed cache.

    Every batch gets a fresh cache. A budget in percent is that share of a request's own tokens:
    its context and the most that it may generate, or its context and the continuation to rate. So
    it does not depend on how requests are batched; requests whose budgets differ run apart.
    """

    def __init__(
        self,
        pretrained: str | PreTrainedModel,
        method: str = "full",
        budget: int | str | None = None,
        block_size: int | None = None,
        feed: str = "steps",
        device: str | None = None,
        dtype: str = "auto",
        parallel: str | None = None,
        batch_size: int | str = 1,
        **options: Any,
    ) -> None:
        """Load a model.

        Args:
            pretrained: Hugging Face directory, or id on the hub; or a model, with its ``tokenizer``
                among the options.
            method: registry syntax.
            budget: entries per KV head and layer, or percent, as in ``"50%"``.
            block_size: read prompts in blocks of so many tokens.
            feed: how continuations are rated, see `kvlab.fast.lab.evaluate.likelihood.FEEDS`.
            device: as PyTorch names it.
            dtype: as the checkpoint has it, or float64, float32, bfloat16 or float16.
            parallel: see `kvlab.fast.models.loading.load`.
            batch_size: requests that run together.
            options: of lm-eval's own class, `OPTIONS`; all other options are hyper-parameters of
                the method. So ``method=h2o@every=25,recent=8`` is understood although lm-eval cuts
                its arguments at commas.

        Raises:
            ValueError: if the method, the budget, an option or the model is not allowed.
            TypeError: if an option has the wrong type.
            FileNotFoundError: if there is no such model.
        """
        own = {name: options.pop(name) for name in OPTIONS & set(options)}
        try:
            size = int(batch_size)
        except ValueError:
            raise ValueError(f"batch_size = {batch_size!r} must be a whole number") from None
        check_at_least(1, batch_size=size)
        self.use(method, budget, block_size, feed, **options)
        network, name = pretrained, getattr(pretrained, "name_or_path", pretrained)
        if isinstance(pretrained, str):
            network, tokenizer = load(pretrained, dtype, _present(device), parallel)
            own.setdefault("tokenizer", tokenizer)
        with quiet("lm_eval.models.huggingface"):  # it warns everybody who hands it a model
            super().__init__(pretrained=network, batch_size=size, **own)
        self.pretrained = name  # what lm-eval writes into its results

    def use(
        self,
        method: str,
        budget: int | str | None = None,
        block_size: int | None = None,
        feed: str = "steps",
        **options: Any,
    ) -> None:
        """Take another method; arguments and errors are the constructor's."""
        check_choice(FEEDS, feed=feed)
        entries = None if budget is None else budget_entries(budget, 10**6)
        methods.get(method, entries, **options)
        self.spec, self.budget, self.method_options = method, budget, options
        self.block_size, self.feed = block_size, feed

    def policy_for(self, entries: int | None) -> Policy:
        """Return the method at a budget in entries."""
        return methods.get(self.spec, entries, **self.method_options)

    def entries_for(self, tokens: int) -> int | None:
        """Return the budget of a request of so many tokens."""
        return None if self.budget is None else budget_entries(self.budget, tokens)

    # --- generate_until ---

    def _model_generate(
        self, context: Int[Tensor, "N m"], max_length: int, stop: list[str], **options: Any
    ) -> Int[Tensor, "N t"]:
        """Continue a batch; rows whose budgets differ run apart."""
        real = options.pop("attention_mask", torch.ones_like(context))
        written = [torch.empty(0)] * len(context)
        lengths = (real.sum(dim=1) + max_length - context.shape[1]).tolist()
        for entries, rows in grouped(map(self.entries_for, lengths)).items():
            longest = int(real[rows].sum(dim=1).max())
            part, mask = context[rows, -longest:], real[rows, -longest:]
            policy = self.policy_for(entries)
            with compress(self.model, policy, block_size=self.block_size) as cache:
                result = super()._model_generate(
                    part,
                    max_length - context.shape[1] + part.shape[1],
                    stop,
                    attention_mask=mask,
                    past_key_values=cache,
                    **options,
                )
            for row, tokens in zip(rows, result[:, part.shape[1] :], strict=True):
                written[row] = tokens
        answers = torch.nn.utils.rnn.pad_sequence(
            written, batch_first=True, padding_value=self.tokenizer.pad_token_id
        )
        return torch.cat([context, answers], dim=1)

    # --- loglikelihood and loglikelihood_rolling ---

    def _loglikelihood_tokens(
        self,
        requests: Sequence[Request],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> list[tuple[float, bool]]:
        """Rate continuations; those whose budgets differ run apart."""
        texts = [self._cut(before, after) for _, before, after in requests]
        answers: list[tuple[float, bool]] = [(0.0, False)] * len(texts)
        lengths = [len(before) + len(after) for before, after in texts]
        budgets = grouped(map(self.entries_for, lengths))
        with tqdm(total=len(texts), disable=disable_tqdm, desc="loglikelihood") as bar:
            for entries, members in budgets.items():
                members.sort(key=lambda i: len(texts[i][0]), reverse=True)
                before = bar.n
                found = likelihoods(
                    self.model,
                    self.policy_for(entries),
                    [texts[i][0] for i in members],
                    [texts[i][1] for i in members],
                    self.block_size,
                    self.feed,
                    override_bs or self.batch_size,
                    lambda done, before=before: bar.update(before + done - bar.n),
                )
                for i, likelihood in zip(members, found, strict=True):
                    answers[i] = float(likelihood.logprobs.sum()), bool(likelihood.greedy.all())
        for (text, _, _), answer in zip(requests, answers, strict=True):
            if text is not None:
                self.cache_hook.add_partial("loglikelihood", text, answer)
        return answers

    def _cut(self, before: list[int], after: list[int]) -> tuple[list[int], list[int]]:
        """Leave out tokens from the left until the model can read the rest."""
        excess = len(before) + len(after) - (self.max_length + 1)
        if excess <= 0:
            return before, after
        if excess >= len(before):
            raise ValueError(
                f"a continuation of {len(after)} tokens does not fit max_length = {self.max_length}"
            )
        log.warning("left out %d tokens at the start of a context", excess)
        return before[excess:], after


register_model("kvlab")(CompressedLM)

OPTIONS = {
    "add_bos_token",
    "chat_template_args",
    "enable_thinking",
    "max_length",
    "max_batch_size",
    "prefix_token_id",
    "think_end_token",
    "tokenizer",
    "truncation",
}
"""Arguments of `HFLM` that also hold for a compressed cache."""


def _present(device: str | None) -> str | None:
    """Return the device, or the CPU if there is no CUDA: lm-eval asks for CUDA by default."""
    if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
        log.warning("device = %r is not available: the CPU is used", device)
        return "cpu"
    return device


@contextmanager
def quiet(logger: str) -> Iterator[None]:
    """Let a logger of lm-eval report errors only."""
    chatter = logging.getLogger(logger)
    before = chatter.level
    chatter.setLevel(logging.ERROR)
    try:
        yield
    finally:
        chatter.setLevel(before)
