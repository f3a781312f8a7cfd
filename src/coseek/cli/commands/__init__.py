"""Commands: one file each, named like the command. Each offers `app`; the first line of its docstring is its help."""
