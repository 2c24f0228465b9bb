"""Pure maths without parameters: attention scores, fused attention, operator norms."""
