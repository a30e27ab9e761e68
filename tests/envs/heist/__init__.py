"""Tests of Procgen Heist."""
