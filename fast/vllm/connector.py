"""The connector: tells the worker who is where in its batch, and the scheduler what was evicted."""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.v1.engine import FinishReason

from kvlab.fast.engine.serving import Siblings
from kvlab.fast.vllm.manager import Account, EvictingManager, EvictingSpec
from kvlab.fast.vllm.metrics import Counted, Exported
from kvlab.fast.vllm.requests import Eviction, Place, Requests
from kvlab.fast.vllm.settings import EXAMPLE, UnsupportedError, settings_of

logger = logging.getLogger("vllm.kvlab")

BEAMS = "beam search makes a request of every token, of which no method can evict anything"


@dataclass
class Places(base.KVConnectorMetadata):
    """Scheduler to worker: where every request stands in the step."""

    of_block: list[dict[int, Place]]
    """For each table, by the block to which the request's last token is written."""
    ended: set[str]
    siblings: set[str]
    """Names of the siblings that live."""


@dataclass
class Evictions(base.KVConnectorWorkerMetadata):
    """Worker to scheduler: what was evicted in a step, and what failed."""

    evicted: list[tuple[int, Eviction]]
    """Number of a table, and what was evicted there."""
    failures: dict[str, str]
    """Why requests are to end, by their ids."""

    def aggregate(self, other: base.KVConnectorWorkerMetadata) -> base.KVConnectorWorkerMetadata:
        """Return what all workers evicted, which is the same; RuntimeError if it is not."""
        if self != other:
            raise RuntimeError(f"kvlab: ranks decided otherwise: {self}, {other}")
        return self


def is_of_beams(params: Any) -> bool:
    """Return whether a request is a step of vLLM's beam search, by what only that asks for."""
    wanted, single = params.logprobs or 0, params.max_tokens == 1 and params.skip_clone
    return single and not params.detokenize and wanted > 0 and wanted % 2 == 0


def without_number(request_id: str) -> str:
    """Return the id that texts of one prompt share: vLLM puts the number of a text before it."""
    return request_id.lstrip("0123456789")


class KvlabConnector(base.KVConnectorBase_V1, base.SupportsHMA):
    """Both sides of the connector."""

    def __init__(self, vllm_config: Any, role: base.KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        settings = settings_of(vllm_config)
        if settings is None:
            raise UnsupportedError(f"KvlabConnector needs additional_config: {EXAMPLE}")
        groups = kv_cache_config.kv_cache_groups
        specs = {type(group.kv_cache_spec) for group in groups}
        if specs != {EvictingSpec} or not (settings.per_layer or len(groups) == 1):
            raise UnsupportedError(
                f"kvlab: every layer must have full attention by a backend of kvlab, not {specs}"
            )
        self.settings, self.counted = settings, Counted()
        reads_whole = settings.policy.last_read is None
        self.shares = reads_whole and vllm_config.cache_config.enable_prefix_caching
        self.siblings: dict[str, Siblings] = {}
        layers = [name for group in groups for name in group.layer_names]
        layers.sort(key=lambda name: int(re.findall(r"\.(\d+)\.", name)[0]))
        self.tables = [Requests(settings, group.layer_names, layers) for group in groups]
        """The worker's requests, for each table of blocks."""
        self.requests_of = {name: each for each in self.tables for name in each.index_of_layer}
        if role is base.KVConnectorRole.SCHEDULER:
            stay = f"{settings.blocks} blocks of {settings.block} tokens stay of every request"
            logger.info("kvlab evicts by %s: %s", settings.method, stay)

    requires_kv_delivery = False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Let attention, which reads a table of its own, stay outside of CUDA graphs."""
        return True

    # --- the scheduler's side ---

    @property
    def managers(self) -> Sequence[EvictingManager]:
        """The managers of the tables."""
        return self._kv_cache_manager.coordinator.single_type_managers  # type: ignore[union-attr]

    def on_new_request(self, request: Any) -> None:
        account = Account(request, self.settings, len(self.managers))
        for each in self.managers:
            each.accounts[request.request_id] = account
        if is_of_beams(request.sampling_params):
            account.fail(BEAMS, FinishReason.ABORT)
        if self.shares:
            stem = without_number(request.request_id)
            if stem != request.request_id and not request.skip_reading_prefix_cache:
                name = f"{stem} {hash(str((request.max_tokens, request.prompt_token_ids)))}"
                account.siblings = self.siblings.setdefault(name, Siblings(name))
                account.siblings.texts.append(account)
            if not account.siblings.texts or account.siblings.reader is account:
                request.skip_reading_prefix_cache = True

    def build_connector_meta(self, scheduler_output: Any) -> Places:
        places: list[dict[int, Place]] = [{} for _ in self.managers]
        self.siblings = {name: each for name, each in self.siblings.items() if each.texts}
        for name, new in scheduler_output.num_scheduled_tokens.items():
            account = self.managers[0].accounts[name]
            seen = account.request.num_computed_tokens + new
            tokens = {"prompt": account.read, "seen": seen, "new": new, "longest": account.last}
            place = Place(name, account.preemptions, *account.turn(seen), **tokens)
            for manager, of_block in zip(self.managers, places, strict=True):
                block = manager.req_to_blocks[name][(seen - 1) // self.settings.block]
                of_block[block.block_id] = place
        return Places(places, set(scheduler_output.finished_req_ids), {*self.siblings})

    def update_connector_output(self, connector_output: Any) -> None:
        if isinstance(told := connector_output.kv_connector_worker_meta, Evictions):
            for table, eviction in told.evicted:
                self.managers[table].evict(*eviction)
            for name, error in told.failures.items():
                account = self.managers[0].accounts.get(name)
                if account is not None and account.error is None:
                    account.fail(error)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        account, *_ = [each.accounts.pop(request.request_id, None) for each in self.managers]
        if account is not None:
            self.counted.add(account)
            logger.info("kvlab: request %s: %s", request.request_id, account.summary())
            if (siblings := account.siblings).texts:
                siblings.texts.remove(account)
            if siblings.reader is not None:
                siblings.reader.request.skip_reading_prefix_cache = True
        return False, None

    request_finished_all_groups = request_finished

    def get_num_new_matched_tokens(self, request: Any, *given: Any) -> tuple[int | None, bool]:
        account = self.managers[0].accounts[request.request_id]
        waits = account.siblings.reader not in (None, account)
        return None if waits else 0, False

    def get_kv_connector_stats(self) -> Counted | None:
        found, self.counted = self.counted, Counted()
        return None if self.role is base.KVConnectorRole.WORKER or found.is_empty() else found

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Counted:
        return Counted(data=data) if data else Counted()

    @classmethod
    def build_prom_metrics(cls, *given: Any) -> Exported:
        return Exported(*given)

    # --- the worker's side ---

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        for requests in self.tables:
            requests.caches = kv_caches

    def bind_connector_metadata(self, connector_metadata: base.KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        if isinstance(step := connector_metadata, Places):
            for requests, places in zip(self.tables, step.of_block, strict=True):
                requests.begin(places, step.ended, step.siblings)

    def build_connector_worker_meta(self) -> Evictions | None:
        ended = [requests.end() for requests in self.tables]
        evicted = [(table, each) for table, (own, _) in enumerate(ended) for each in own]
        failures = {name: error for _, own in ended for name, error in own.items()}
        return Evictions(evicted, failures) if evicted or failures else None

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is loaded from elsewhere or saved."""

    start_load_kv = wait_for_layer_load = save_kv_layer = wait_for_save = _nothing
    update_state_after_alloc = _nothing
