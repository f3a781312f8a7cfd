"""The command line: the program `coseek` and its commands. A command parses, calls a pipeline and prints."""
