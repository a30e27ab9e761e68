"""Tests of plain Gymnasium environments."""
