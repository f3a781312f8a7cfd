"""Core: errors, settings, files, caches, plug-ins. Knows nothing of search agents."""
