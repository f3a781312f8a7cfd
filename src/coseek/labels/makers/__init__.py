"""Label makers, one file each; its name is what `--method` takes."""
