"""Commands that run a model in PyTorch; importing them does not import it."""
