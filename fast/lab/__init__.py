"""The lab beside the engine: everything that runs, compares, draws or prints."""
