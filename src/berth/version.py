"""The version of berth, which the build reads here."""

__version__ = "0.2.0"
