"""Search providers of the web, one file each, named by its file; see `coseek.retrieval.web.provider`."""
