"""Scripted agents of the laboratory: demonstrators that read the plan or the gold path of a question."""
