"""Web search: providers over HTTP, and reading of pages."""
