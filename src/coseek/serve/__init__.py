"""Serve: retrievers and models over HTTP. Needs the extra `serve`."""
