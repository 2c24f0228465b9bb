"""The colours of runs and lines in the figures and in the report."""

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito (2008) for colour-blind readers.

Its colours are blue, vermilion, green, purple, orange, sky blue and black. The yellow is left out, as it is too light
for a line on white.
"""
