"""Agents: protocols, their wordings, the rollout driver, and writers. Knows no index and no weights."""
