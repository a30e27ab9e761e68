"""Slow, obvious, float64 versions of the method's mathematics, written from its description.

They share nothing with the package but the names of its parameters: `network` is a literal forward
pass, `ppo` the policy phase, `episodes` cutting, labelling and memory, `transport` the matching of one
pair of episodes, `distill` the auxiliary updates with every image encoded apart, `adam` the optimiser.
"""
