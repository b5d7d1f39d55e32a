"""vLLM's own scheduler, of which a step reads no further than where blocks of a prompt are evicted.

Decisions within a prompt are at fixed positions of its text, whatever else runs. vLLM asks its
scheduler to cut a step's tokens for models with a recurrent state (`Scheduler` calls this method if
``need_mamba_block_aligned_split`` is set); no model that kvlab takes has one.
"""

from copy import copy
from typing import Any

from kvlab.fast.vllm.settings import settings_of


def in_blocks(vllm_config: Any, **given: Any) -> Any:
    """Return the scheduler that vLLM would take, with kvlab's cut of a prompt."""
    settings = settings_of(vllm_config)
    config = copy(vllm_config.scheduler_config)
    config.scheduler_cls = None
    own: Any = config.get_scheduler_cls()
    if settings is None:
        return own(vllm_config=vllm_config, **given)
    size = settings.prompt_block

    class InBlocks(own):
        """Cuts what a step reads of a prompt."""

        def _mamba_block_aligned_split(self, request: Any, new: int, *found: int) -> int:
            begins = request.num_computed_tokens + sum(found)
            return min(new, size - begins % size)

    scheduler = InBlocks(vllm_config=vllm_config, **given)
    scheduler.need_mamba_block_aligned_split = True
    return scheduler
