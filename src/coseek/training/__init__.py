"""Training: the outer loops. Knows nothing of HTTP or terminals. Importing this package does not import torch."""
