"""Tools that an agent can call, one file each. A file's name is the tool's name; `tool.py` holds what all share."""
