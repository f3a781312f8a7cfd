"""Hub: cards of models and data sets, and their exchange with the Hugging Face Hub or a folder in its place."""
