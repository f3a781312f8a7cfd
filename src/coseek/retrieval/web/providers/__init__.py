"""Search engines of the web, one file each. The file's name is the engine's name; see `coseek.retrieval.web.provider`."""
