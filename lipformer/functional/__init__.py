"""Pure mathematics without parameters: attention scores, fused attention, operator norms."""
