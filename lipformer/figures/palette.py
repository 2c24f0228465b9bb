"""The colours of runs and lines, in figures and in the report."""

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's (2008), told apart by colour-blind readers: blue, vermilion, green, purple, orange, sky blue, black.

Their yellow is left out: it is too light for a line on white.
"""
