"""Traces: runs as other systems write them, in and out."""
