"""Training: the training loops. Uses no HTTP and no terminal. Importing this package does not import torch."""
