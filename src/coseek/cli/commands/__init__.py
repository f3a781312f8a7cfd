"""Commands: one file each, named like the command. Each defines `app`; the first line of its docstring is its help."""
