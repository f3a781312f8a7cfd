"""Serve: coseek behind HTTP, for programs that are not coseek. Needs the extra `serve`."""
