"""The nouns of coseek and their files. Knows nothing of models, retrievers or training."""
