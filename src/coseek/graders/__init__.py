"""Graders: frozen models that are asked about finished runs: generator, judge, RAG baseline, prompted scorers."""
