"""The two programs: the command line, its errors in one line each, and the table at the end of a sweep."""
