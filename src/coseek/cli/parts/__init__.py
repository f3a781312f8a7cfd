"""Parts that `coseek new` copies: one small, working file for each kind, which `coseek check` tries."""
