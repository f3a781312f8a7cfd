"""Parts of the laboratory, found by name: laptop worlds, their oracle and labels, questions made from passages."""
