"""Tools that an agent can call, one file each, named by the file; `agents/tool.py` holds what all share."""
