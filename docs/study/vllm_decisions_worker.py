"""Runs kvlab's worker of vLLM, and adds to what it writes what was ``evicted`` of each text.

That is a list for each prompt: after how many tokens, and the numbers of the blocks. It runs in
vLLM's environment, with the file of the worker as its argument.
"""

import io
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]).parent))
import vllm_worker  # pyright: ignore[reportMissingImports] # it says how vLLM has to start

from kvlab.fast.vllm.turns import Turn

told = sys.stdin.read()
sys.stdin = io.StringIO(told)
asked = json.loads(told)
evict, found = Turn.evict, [[] for _ in asked["prompts"]]


def noting(self: Turn, stay: set[int]) -> None:
    """Evict, and note what."""
    evict(self, stay)
    number = int(self.place.request_id.partition("-")[0])
    found[number].append((self.place.seen, [*self.requests.evictions[-1].blocks]))


if __name__ == "__main__":
    Turn.evict = noting
    vllm_worker.main()
    out = Path(asked["out"])
    out.write_text(json.dumps({**json.loads(out.read_text()), "evicted": found}))
