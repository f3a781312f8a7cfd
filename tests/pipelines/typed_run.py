"""What one of several workers runs in `test_agent.py`: a command as it is typed."""

from coseek.cli.main import main


def typed(*words: str) -> None:
    assert main([*words]) == 0
