"""The catalogue of what is measured while a model trains: a row for each quantity says where and how it is shown.

Telemetry returns a quantity by its name. All readers take the rest from its row here: the summary of a wandb run, the
panels of the workspace, the charts, heat maps and tables of the report, the figures, the table at the end of a training
and the line of progress. A new quantity is a telemetry function that returns it, and a row.
"""

from lipformer.runs.metric_names import (
    BLOCK,
    BRANCH,
    CERTIFICATE,
    LAYER,
    LOGITS,
    NORM,
    TOTAL,
    TRAIN,
    TRUNK,
    metric_name,
)
from lipformer.runs.quantity import LARGEST, SMALLEST, Chart, Curve, Drawing, HeatMap, Quantity, Value

SECTIONS = ("Optimisation", "Attention", "Ranges", "Lipschitz", "Invertibility")
"""The sections of the workspace. Charts and the line of progress follow their order."""

BY_NORM = "(2|inf|mixed)"
PARAMETRISED = (BLOCK, LAYER, TOTAL)
SPREAD = (BLOCK, LAYER, TRUNK)

CATALOGUE: tuple[Quantity, ...] = (
    Quantity(
        "entropy_share",
        "Attention entropy",
        layers=(BRANCH, TOTAL),
        axis="entropy / log n",
        scale="linear",
        limits=(0.0, 1.0),
        worst=SMALLEST,
        extreme_of=TOTAL,
        section="Attention",
        chart=Chart(
            "share of the largest possible, mean of all layers; pale: the lowest layer",
            Curve("mean of layers", TOTAL),
            Curve("lowest layer", TOTAL, "entropy_share_lowest_layer"),
        ),
        heat_map=HeatMap(
            "share of the largest possible, mean over rows and heads; 0: each token looks at one, 1: at all alike"
        ),
        drawing=Drawing(
            "map",
            "attention entropy",
            "attention entropy, mean of the layers",
            map_title="entropy / log n",
        ),
        column=Value("entropy", TOTAL, about="share of the largest, at the end"),
        summary=(Value("lowest attention entropy", SMALLEST, "{:.1%} of log n"),),
        progress=Value("entropy", TOTAL, "{:.0%}"),
    ),
    Quantity(
        "entropy_share_lowest_layer",
        "Attention entropy of the lowest layer",
        layers=(TOTAL,),
        scale="linear",
        worst=SMALLEST,
    ),
    Quantity(
        "entropy_share_lowest_head",
        "Attention entropy of the lowest head",
        layers=(BRANCH,),
        scale="linear",
        worst=SMALLEST,
        section="Attention",
    ),
    Quantity("entropy(_min)?", "Attention entropy in nats, mean and lowest", layers=(BRANCH,), worst=SMALLEST),
    Quantity("largest_weight", "Largest weight", layers=(BRANCH,), scale="linear", section="Attention"),
    Quantity("logit_variance", "Variance of the logits", layers=(BRANCH,), section="Attention"),
    Quantity(
        "softmax_jacobian_norm",
        "Norm of the softmax's Jacobian",
        layers=(BRANCH,),
        scale="linear",
        worst=SMALLEST,
        section="Attention",
    ),
    Quantity("softmax_jacobian_norm_max", "Largest norm of the softmax's Jacobian", layers=(BRANCH,), scale="linear"),
    Quantity(
        "weights_frobenius", "Frobenius norm of the weights", layers=(BRANCH,), scale="linear", section="Attention"
    ),
    Quantity(
        "output_range",
        "Output range",
        layers=SPREAD,
        axis="max − min",
        difference=("output_max", "output_min"),
        of_last_layer=True,
        heat_map=HeatMap("largest less smallest entry of each layer's output", hidden=(BLOCK,)),
        drawing=Drawing(
            "blocks",
            "range of a block's output",
            "range of a block's output, largest",
            reduction=LARGEST,
            map_title="range of the blocks' outputs",
        ),
    ),
    Quantity(
        "range_ratio",
        "Output range over input range",
        layers=SPREAD,
        section="Ranges",
        chart=Chart(
            "over the range of its input",
            Curve("range ratio", TRUNK),
            title="Output range of the trunk",
        ),
    ),
    Quantity(
        BY_NORM,
        "Certified Lipschitz constant",
        layers=(LAYER, BRANCH, NORM, TRUNK, LOGITS),
        group=CERTIFICATE,
        axis="Lipschitz constant",
        scale="log",
        column=Value("certificate", TRUNK, about="Lipschitz constant of the trunk, at most"),
        summary=(Value("trunk certificate", TRUNK),),
    ),
    Quantity(
        "local_lipschitz",
        "Local Lipschitz constant",
        layers=(LAYER, BRANCH, NORM, TRUNK, LOGITS),
        axis="Lipschitz constant",
        scale="log",
        section="Lipschitz",
        chart=Chart(
            "measured at a few sentences, from below; pale: the certificate, from above",
            Curve("measured", TRUNK),
            Curve("certified", TRUNK, BY_NORM),
            title="Lipschitz constant of the trunk",
        ),
        heat_map=HeatMap("the largest that was found at a few sentences, a lower bound", hidden=(NORM,)),
        drawing=Drawing("bounds", "trunk", "trunk"),
        summary=(Value("trunk, measured", TRUNK),),
    ),
    Quantity(
        "branch_gain",
        "Branch gain",
        layers=(LAYER,),
        axis="rms(branch) / rms(skip)",
        worst=SMALLEST,
        section="Ranges",
        chart=Chart(
            "size of what a branch adds over that of its skip, lowest of all residuals; pale: highest",
            Curve("lowest", SMALLEST),
            Curve("highest", LARGEST),
        ),
        heat_map=HeatMap("size of what the branch adds over that of its skip; near 0 the branch has vanished"),
        drawing=Drawing(
            "branches",
            "branches",
            "branches, least gain",
            reduction=SMALLEST,
            map_title="rms(branch) / rms(skip)",
        ),
    ),
    Quantity("output_max", "Largest output", layers=SPREAD, scale="linear", section="Ranges"),
    Quantity("output_std", "Standard deviation of the output", layers=SPREAD, section="Ranges"),
    Quantity("output_min", "Smallest output", layers=SPREAD, scale="linear"),
    Quantity("output_(q01|q50|q99)", "Quantiles of the output", layers=SPREAD, scale="linear"),
    Quantity(
        "input_(min|q01|q50|q99|max|std)",
        "Smallest and largest input, quantiles and standard deviation",
        layers=SPREAD,
        scale="linear",
    ),
    Quantity("std_ratio", "Standard deviation of the output over that of the input", layers=SPREAD),
    Quantity(r"\w+_norm_2", "Spectral norm of the weights", layers=(BRANCH,), scale="log", section="Lipschitz"),
    Quantity(r"\w+_norm_inf", "Inf-norm of the weights", layers=(BRANCH,), scale="log", section="Lipschitz"),
    Quantity(
        "contraction_rate",
        "Rate of contraction of the fixed point",
        layers=(LAYER,),
        scale="linear",
        section="Invertibility",
    ),
    Quantity(
        "reconstruction_error", "Error of the inverse", layers=(LAYER, TRUNK), scale="log", section="Invertibility"
    ),
    Quantity(
        "gradient_norm",
        "Gradient norm",
        layers=PARAMETRISED,
        axis="Euclidean norm",
        extreme_of=TOTAL,
        instead={TOTAL: metric_name(TRAIN, "gradient_norm")},
        section="Optimisation",
        chart=Chart(
            "of all parameters; pale: after clipping",
            Curve("before clipping", TOTAL),
            Curve("clipped", TOTAL, "gradient_norm_clipped"),
        ),
        heat_map=HeatMap("before clipping"),
        drawing=Drawing("curves", "gradient", "gradient, before clipping"),
        column=Value("gradient", TOTAL, pick="largest", about="largest norm, before clipping"),
        summary=(Value("gradient norm", TOTAL, "{:.3g}"), Value("largest of a layer", LARGEST, "{:.3g}")),
        progress=Value("gradient", TOTAL, "{:.3g}"),
    ),
    Quantity("gradient_norm_clipped", "Gradient norm after clipping", layers=PARAMETRISED, axis="Euclidean norm"),
    Quantity(
        "update_ratio",
        "Update ratio",
        layers=PARAMETRISED,
        axis="‖update‖ / ‖parameters‖",
        section="Optimisation",
        chart=Chart("norm of a step's update over that of the parameters", Curve("update ratio", TOTAL)),
        drawing=Drawing("spread", "updates", "update of all parameters"),
    ),
    Quantity("update_norm", "Norm of the update", layers=PARAMETRISED),
    Quantity("parameter_norm", "Norm of the parameters", layers=PARAMETRISED, section="Optimisation"),
    Quantity(
        "lr",
        "Learning rate",
        group=TRAIN,
        scale="linear",
        section="Optimisation",
        chart=Chart("as the schedule has it", Curve("learning rate", None)),
    ),
    Quantity("regularizer", "Penalty of the regularizer", group=TRAIN, scale="linear", section="Optimisation"),
    Quantity("tokens", "Tokens seen", group=TRAIN, scale="linear"),
)
"""All quantities but the objectives of tasks, in the order of heat maps, figures, tables and the summary."""


def find_quantity(name: str) -> Quantity:
    """Return the row with this name.

    Raises:
        KeyError: there is none.
    """
    for quantity in CATALOGUE:
        if quantity.name == name:
            return quantity
    raise KeyError(name)


def by_section() -> list[Quantity]:
    """Return the rows that are in a section, in the order of `SECTIONS`."""
    return [quantity for section in SECTIONS for quantity in CATALOGUE if quantity.section == section]
