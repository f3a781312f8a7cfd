"""Data makers of the laboratory, found by name (`coseek.data.maker`): laptop worlds, questions made from passages."""
