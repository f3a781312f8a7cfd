"""Labels: what finished trajectories teach a retriever."""
