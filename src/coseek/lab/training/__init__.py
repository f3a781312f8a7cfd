"""What the shipped models learn from generated worlds: tasks, examples, drills, labels."""
