"""What runs a policy in PyTorch: batched, in place, without waiting for the device."""
