"""View: runs, labels and training curves as one HTML page that loads nothing."""
