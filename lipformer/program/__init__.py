"""The two programs: their command line, messages for its errors, and the table at the end of a sweep."""
