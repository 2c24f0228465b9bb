"""What is asked of the operating system: whole files, signals, how threads wait, the terminal. Free of torch."""
