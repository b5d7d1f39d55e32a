"""Drives vLLM's engine by events, inside vLLM's environment; imports nothing of the tests.

Every line of standard input is a run in JSON: ``model``, ``engine`` (arguments of `LLM`), ``kvlab``
(or null) and ``events``, each the name of a method of `Engine` and its arguments. A run of the same
engine as the last one goes on with it. The answer is a line of `MARK` and JSON: ``texts`` by
request, with ``tokens`` and ``logp``; the ``evicted`` blocks as request, tokens seen, number and
table, of how many ``tables``; what the pool held; ``log``; ``waiting`` bytes of a request at most;
how often a step ``waits`` to read from the device; ``copied`` numbers at most while caches are
read; or ``error``.
"""

import gc
import json
import logging
import os
import sys
import time
import traceback
from dataclasses import replace
from types import SimpleNamespace

import stand_ins

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_CPU_CI_ENV": "1",  # what is compiled is traced, and run as it is
}
CONNECTOR = {"kv_connector": "KvlabConnector", "kv_role": "kv_both"}


MARK = "kvlab found "
LOG: list[str] = []
if "KVLAB_BACKEND" in os.environ:  # in the processes of ranks, too
    stand_ins.take_the_place_of_cpus(os.environ["KVLAB_BACKEND"])


class Engine:
    """One engine and what it wrote."""

    def __init__(self, model: str, engine: dict, kvlab: dict | None) -> None:
        from vllm import LLM  # type: ignore[attr-defined]

        given = {
            "dtype": "float32",
            "max_model_len": 512,
            "enforce_eager": True,
            "max_num_seqs": 8,
            "block_size": 32,
            "skip_tokenizer_init": True,
        }
        if kvlab is not None:
            given |= {"additional_config": {"kvlab": kvlab}, "kv_transfer_config": CONNECTOR}
        given |= engine
        given.pop("keep_backends", None)
        stand_ins.set_layout(given.pop("layout", None), given.pop("segments", False))
        self.engine = LLM(model, **given).llm_engine
        self.scheduler = self.engine.engine_core.engine_core.scheduler
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.tables, self.group = 1, None
        if kvlab is not None:
            self.listen()
        self.begin()

    def begin(self) -> None:
        """Forget what was found so far."""
        self.texts: dict = {}
        self.evicted: list = []
        self.steps = self.preempted = self.cached = self.at_once = self.waiting = self.waits = 0
        self.copied = 0
        self.reasons: dict = {}
        self.milliseconds = 1e9
        self.least_free = self.pool.get_num_free_blocks()
        LOG.clear()

    def listen(self) -> None:
        """Note what the worker evicts, and when."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

        if not has_kv_transfer_group():
            return  # workers are processes of their own
        self.group = get_kv_transfer_group()
        stand_ins.take_notes()
        tables = self.group.tables
        self.tables = len(tables)
        for number, requests in enumerate(tables):
            requests.end = self.noting(number, requests, requests.end)

    def noting(self, table, requests, end):
        def noted():
            places = {place.request_id: place for place in requests.places.values()}
            found, failures = end()
            for request_id, _, numbers in found:
                name, seen = request_id.rpartition("-")[0], places[request_id].seen
                self.evicted += [[name, seen, number, table] for number in numbers]
            for request in requests.by_id.values():
                held = sum(each.untyped_storage().nbytes() for each in request.waiting)
                self.waiting = max(self.waiting, held)
            now = stand_ins.noted()
            self.waits = max(self.waits, now["waits"])
            self.copied = max(self.copied, now["copied"])
            return found, failures

        return noted

    # --- events ---

    def strides(self) -> list[int]:
        """Return those of the first layer's cache, if this process has it."""
        caches = self.group.tables[0].caches if self.group else {}
        return [*next(iter(caches.values())).stride()] if caches else []

    def arrive(self, name: str, prompt: list[int], tokens: int, **given) -> None:
        """Add a request."""
        from vllm import SamplingParams  # type: ignore[attr-defined]

        params = {"temperature": 0.0, "ignore_eos": True, "detokenize": False, "logprobs": 1}
        params = SamplingParams(max_tokens=tokens, **params | given)
        self.engine.add_request(name, {"prompt_token_ids": prompt}, params)

    def time_admission(self, running: int) -> None:
        """Time how many blocks a request needs beside others, whose texts are long."""
        from kvlab.fast.vllm.manager import Account

        (manager,) = self.scheduler.connector.managers
        settings = replace(self.scheduler.connector.settings, longest=131072)
        for number in range(running + 1):
            tokens = {"num_tokens": 2048 + number, "num_prompt_tokens": 2048, "max_tokens": 129024}
            request = SimpleNamespace(**tokens, num_computed_tokens=3000, num_preemptions=0)
            manager.accounts[str(number)] = account = Account(request, settings, 1)
            if number < running:
                account.begin()
                manager.req_to_blocks[str(number)] = [None]
        for _ in range(20):
            manager.accounts[str(running)].preemptions = -1
            began = time.thread_time()
            manager.get_num_blocks_to_allocate(str(running), 2048, [], 0, 0, 2048)
            taken = 1000 * (time.thread_time() - began)
            self.milliseconds = min(self.milliseconds, taken)
        for number in range(running + 1):
            manager.accounts.pop(str(number))
            manager.req_to_blocks.pop(str(number), None)

    def step(self, times: int = 1) -> None:
        """Let the engine write some tokens."""
        for _ in range(times):
            if not self.engine.has_unfinished_requests():
                return
            self.steps += 1
            for output in self.engine.step():
                self.cached = max(self.cached, output.num_cached_tokens or 0)
                for each in output.outputs:
                    pairs = zip(each.token_ids, each.logprobs, strict=True)
                    logp = [row[token].logprob for token, row in pairs]
                    name = f"{output.request_id}/{each.index}"
                    self.texts[name] = {"tokens": list(each.token_ids), "logp": logp}
                    self.reasons[name] = [each.finish_reason, each.stop_reason]
            self.least_free = min(self.least_free, self.pool.get_num_free_blocks())
            self.at_once = max(self.at_once, len(self.scheduler.running))
            running = self.scheduler.requests.values()
            self.preempted = max([self.preempted, *(each.num_preemptions for each in running)])

    def abort(self, name: str) -> None:
        """Take a request back."""
        self.engine.abort_request([name])

    def drain(self) -> None:
        """Let all requests end."""
        self.step(10000)

    def found(self) -> dict:
        """Return what was found since `begin`."""
        numbers = ("steps", "preempted", "cached", "at_once", "least_free", "tables")
        notes = ("waiting", "waits", "copied", "reasons", "milliseconds")
        return {name: getattr(self, name) for name in ("texts", "evicted", *numbers, *notes)} | {
            "blocks": self.pool.num_gpu_blocks - 1,
            "free": self.pool.get_num_free_blocks(),
            "log": list(LOG),
            "strides": self.strides(),
            "graphs": stand_ins.compiled(),
        }


def close(keep_backends: bool) -> None:
    """Let the process have another engine, which may find what vLLM keeps of the last."""
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown
    from vllm.v1.attention.selector import _cached_get_attn_backend

    ensure_kv_transfer_shutdown()
    cleanup_dist_env_and_memory()
    gc.collect()
    if not keep_backends:
        _cached_get_attn_backend.cache_clear()


def main() -> None:
    """Answer every line."""
    handler = logging.Handler()
    handler.emit = lambda record: LOG.append(record.getMessage())  # type: ignore[method-assign]
    for name in ("vllm.kvlab", "kvlab"):
        logging.getLogger(name).setLevel(logging.INFO)
        logging.getLogger(name).addHandler(handler)
    asked, engine = None, None
    for line in sys.stdin:
        told = json.loads(line)
        events = told.pop("events")
        try:
            if told != asked or engine is None:
                if asked is not None:
                    engine = None
                    close(told["engine"].get("keep_backends", False))
                asked, engine = told, Engine(**told)
            engine.begin()
            for name, *given in events:
                getattr(engine, name)(**(given[0] if given else {}))
            found = engine.found()
        except Exception as error:
            engine = None
            found = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        print(MARK + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
