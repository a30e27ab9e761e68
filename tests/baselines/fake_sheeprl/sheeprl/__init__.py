"""Stands in for sheeprl, to test what launches it: plays at random, and writes checkpoints where sheeprl does."""
