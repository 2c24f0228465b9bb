"""The style of the figures: colours, looks, ticks, and labels that readers can tell apart."""

import itertools
import math

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from lipformer.figures.axes import Horizontal
from lipformer.figures.lines import INFINITY
from lipformer.figures.panels import bounds_of_a_run
from lipformer.figures.style import LOOKS, depth_colors, log_ticks, looks, power
from lipformer.runs.quantities import find_quantity
from lipformer.runs.record import Series

# Machado, Oliveira and Fernandes (2009), severity 1: what a reader without one kind of cones sees, in linear RGB.
VISIONS = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}


def lab(rgb, vision):
    """CIE Lab of an sRGB colour as somebody sees it."""
    linear = np.where(np.array(rgb) <= 0.04045, np.array(rgb) / 12.92, ((np.array(rgb) + 0.055) / 1.055) ** 2.4)
    linear = np.clip(VISIONS[vision] @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    ratio = xyz / np.array([0.95047, 1.0, 1.08883])
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def closest(colors, vision):
    return min(np.linalg.norm(lab(a, vision) - lab(b, vision)) for a, b in itertools.combinations(colors, 2))


@pytest.mark.parametrize("vision", VISIONS)
def test_colors_stay_apart_for_colour_blind_readers(vision):
    colors = [to_rgb(look.color) for look in LOOKS]
    assert closest([*colors, (1, 1, 1)], vision) > 15, "from each other and from the paper; 2.3 is just noticed"
    assert closest([(0.8, 0.2, 0.2), (0.3, 0.5, 0.2)], vision) > 15 or vision != "usual", "red and green are, as usual"
    steps = [lab(color[:3], vision)[0] for color in depth_colors(8)]
    assert np.diff(steps).min() > 3, "layers get lighter with depth, in grey too"


def test_the_simulation_makes_red_and_green_alike():
    red, green = (0.75, 0.25, 0.2), (0.35, 0.5, 0.2)
    assert closest([red, green], "usual") > 60
    assert closest([red, green], "deuteranopia") < 25


def test_prints_in_grey_differ_by_dashes_and_markers():
    for count in (1, len(LOOKS), 2 * len(LOOKS)):
        found = looks(count)
        assert len({(look.color, str(look.dashes)) for look in found}) == count
        assert len({(look.color, look.marker) for look in found}) == count
    assert len({str(look.dashes) for look in LOOKS}) == len({look.marker for look in LOOKS}) == len(LOOKS)


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 1.0), (1.0, 1.2), (7.0, 45.0), (0.5, 3.2), (0.002, 0.4), (1.0, 1e9), (1e-7, 1e250)]
)
def test_logarithmic_axes_have_a_few_labels_each_its_own(low, high):
    axes = Figure().add_subplot()
    axes.set_yscale("log")
    axes.plot([low, high])
    log_ticks(axes.yaxis, low, high)
    bottom, top = axes.get_ylim()
    shown = [tick for tick in axes.yaxis.get_majorticklocs() if bottom <= tick <= top]
    assert 2 <= len(shown) <= 9
    labels = [power(tick) for tick in shown]
    assert len(set(labels)) == len(labels)
    assert not len(axes.yaxis.get_minorticklocs())


def test_powers_are_spelled_shortly():
    assert [power(x) for x in (1, 0.001, 250, 0.0005, 1e-12, 3e20, 1.5e4)] == [
        "1",
        "0.001",
        "250",
        "5·10⁻⁴",
        "10⁻¹²",
        "3·10²⁰",
        "1.5·10⁴",
    ]


@pytest.mark.parametrize("place", [0, 1], ids=["begin", "end"])
@pytest.mark.parametrize("value", [1e-3, 1.0, 3.2, 8.5, 42.0, 9.5e4, 1e240])
def test_one_constant_below_infinity_has_ticks_around_it(value, place):
    tokens = np.array([1e3 * place])
    trunk = {"measured": Series(tokens, tokens, np.array([value])), "2": Series(tokens, tokens, np.array([math.inf]))}
    axes = Figure(layout="constrained").add_subplot()
    bounds_of_a_run(axes, trunk, find_quantity("local_lipschitz"), Horizontal("tokens", 1.0, True, 1e3))
    low, high = axes.get_ylim()
    ticks = [tick for tick in axes.yaxis.get_majorticklocs() if low <= tick <= high]
    assert 3 <= len(ticks) <= 6
    assert ticks[0] < 1.1 * value
    assert ticks[-1] > 0.9 * value

    def height(y):
        return axes.transAxes.inverted().transform(axes.transData.transform((0.0, y)))[1]

    assert 0.3 < height(value) < 0.6
    assert max(map(height, ticks)) < INFINITY - 0.06
    texts = {text.get_text(): text for text in axes.texts}
    assert texts.keys() == {power(value), "∞"}
    assert texts[power(value)].get_horizontalalignment() == ("right" if place else "left"), "inside of the panel"
