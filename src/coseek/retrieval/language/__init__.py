"""Language models in retrieval: what they are asked, and how their answers are read."""
