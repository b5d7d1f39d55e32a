"""Models that PEFT has wrapped: adapters in layers belong to the model, learned prompts do not."""

from typing import Any


def without_wrapper(model: Any) -> Any:
    """Return the model inside PEFT's wrapper, whose layers have the adapters; or the model itself.

    ValueError for learned prompts and prefixes, which are entries of no token.
    """
    if not (hasattr(model, "peft_config") and hasattr(model, "get_base_model")):
        return model
    for name, adapter in model.peft_config.items():
        if adapter.is_prompt_learning:
            raise ValueError(
                f"the adapter {name!r} of {type(model).__name__} ({adapter.peft_type.value}) puts "
                "learned entries before the text, which kvlab does not know: use it without "
                "compress()"
            )
    return model.get_base_model()
