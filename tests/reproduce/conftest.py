"""Whole runs: annotated shapes are left unchecked."""

from tests.helpers.shapes import shapes_unchecked

__all__ = ["shapes_unchecked"]
