"""The rewards by name. A part is a file with `class Options(PartOptions)` and `reward(trajectory, options)`."""
