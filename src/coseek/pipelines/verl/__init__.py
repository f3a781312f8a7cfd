"""verl: reinforcement learning of a stage by verl, whose workers play coseek's episodes (`coseek.adapters.verl`)."""
