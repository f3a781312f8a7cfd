"""Agents: protocols, their prompt templates, the rollout driver, and scripted agents. Knows no index and no weights."""
