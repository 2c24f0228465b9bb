"""The run folder: its files, how it is claimed, locked and closed, and how it is read again. Free of torch."""
