"""What was evicted, counted for Prometheus and for vLLM's log."""

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import metrics

COUNTED = {
    "evicted": "Blocks that were evicted.",
    "freed": "Blocks that were evicted and went back to the pool.",
    "finished": "Requests that have finished.",
    "without_effect": "Requests that have finished, and from which nothing was evicted.",
}


@dataclass
class Counted(metrics.KVConnectorStats):
    """Sums over requests that finished in an interval."""

    def add(self, account: Any) -> None:
        """Count a request that has finished."""
        new = (account.evicted, account.freed, 1, int(account.evicted == 0))
        self.data = self.aggregate(Counted(dict(zip(COUNTED, new, strict=True)))).data

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: metrics.KVConnectorStats) -> metrics.KVConnectorStats:
        both = {name: self.data.get(name, 0) + other.data.get(name, 0) for name in COUNTED}
        return Counted(data=both)

    def reduce(self) -> dict[str, int | float]:
        return {f"blocks {name}": self.data.get(name, 0) for name in ("evicted", "freed")}

    def is_empty(self) -> bool:
        return not self.data


class Exported(metrics.KVConnectorPromMetrics):
    """The counters ``vllm:kvlab_…``."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.counters = {}
        engines = self.per_engine_labelvalues.items()
        for name, text in COUNTED.items():
            counter = self._counter_cls(f"vllm:kvlab_{name}", text, labelnames=self._labelnames)
            self.counters[name] = {engine: counter.labels(*values) for engine, values in engines}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, counters in self.counters.items():
            counters[engine_idx].inc(transfer_stats_data.get(name, 0))
