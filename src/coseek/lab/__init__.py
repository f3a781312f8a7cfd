"""Laboratory: generated worlds with oracle and expert, questions made from passages, and the training of the models
that coseek ships. Nothing outside imports it, except the command line: what others need of it is found by its name."""
