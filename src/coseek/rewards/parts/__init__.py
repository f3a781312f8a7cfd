"""The rewards by name. A part is a file with `class Options(PartSettings)` and `reward(trajectory, settings)`."""
