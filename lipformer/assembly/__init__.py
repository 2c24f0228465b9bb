"""From a configuration to the objects it describes, and from a checkpoint back to a trained model."""
