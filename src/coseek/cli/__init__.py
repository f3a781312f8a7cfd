"""Faces in the terminal: the program `coseek` and its commands. Knows how nothing below works inside."""
