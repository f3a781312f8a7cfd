"""Lexical search: tokenisation and postings."""
