"""The inflation experiment: jobs arrive and none leaves, until more has arrived than the cluster holds."""

from berth_papers.inflate.inflation import (
    Arrivals,
    Inflation,
    InflationCurve,
    inflate,
    inflation_dict,
    own_arrivals,
    read_arrivals,
)
