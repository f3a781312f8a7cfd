"""How servers are asked, one dialect a file. A file's name is the dialect's."""
