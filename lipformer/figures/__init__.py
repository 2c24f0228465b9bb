"""Figures for papers: each function draws figures and writes each as a PNG to look at and as a PDF to print."""

from lipformer.figures.certified import certified_share
from lipformer.figures.comparison import compare_runs
from lipformer.figures.normalisations import norm_constants
from lipformer.figures.run import draw_run
from lipformer.figures.sweep import draw_sweep

__all__ = ["certified_share", "compare_runs", "draw_run", "draw_sweep", "norm_constants"]
