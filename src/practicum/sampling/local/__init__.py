"""The sampler that runs in the trainer's own process, on PyTorch."""
