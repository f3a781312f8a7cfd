"""Training data of the shipped models from generated worlds: tasks, examples, drills."""
