"""How small a cluster can be at the same wait: an exact scan over sizes, and a page of it."""

from berth.experiments.size.scan import Answer, Curve, Keep, Point, Sizes, keep_of, smallest_sizes
