"""The command line: the program `coseek` and its commands. A command parses its arguments, calls a pipeline, prints."""
