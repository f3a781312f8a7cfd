"""The web: search engines over HTTP, pages and what is written on them."""
