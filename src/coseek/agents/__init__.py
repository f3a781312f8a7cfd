"""Agents: protocols, their prompt templates, the rollout driver, and writers. Knows no index and no weights."""
