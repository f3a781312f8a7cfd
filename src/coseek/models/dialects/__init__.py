"""Dialects: the request formats of model servers, one per module. The module's name is the dialect's."""
