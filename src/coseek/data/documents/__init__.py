"""Documents: files of a user, read into sections and split into passages, in a process of their own."""
