"""The two programs: their command line, messages for its errors, sweeps of jobs, and their table at the end."""
