"""Models: tokenizers, the batched sampler, the laptop policy. Importing this package does not import torch."""
