"""Agents: protocols, prompt templates, tools, the rollout driver and scripted agents. Imports no index, no weights."""
