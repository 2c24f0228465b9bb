"""What is watched of a model while it trains: measurements, none of which changes it."""
