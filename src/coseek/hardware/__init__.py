"""Machine: which arithmetic is fastest on this one, found out by trying, and what `auto` in a setting comes to."""
