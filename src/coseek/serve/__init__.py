"""Serve: retrievers and agents over HTTP. Needs the extra `serve`."""
