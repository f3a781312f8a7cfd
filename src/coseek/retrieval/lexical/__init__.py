"""Words: how text is cut, and in which passages each word stands."""
