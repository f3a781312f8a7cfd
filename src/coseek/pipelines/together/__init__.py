"""Co-training: an agent and a retriever that make each other better, round by round."""
