"""Rules as a user's module has them, for `rules=tests.envs.rules:RULES`; they need no compilation of their own."""

from achieve.envs.crafter import mod
from achieve.envs.crafter.compiler import original

RULES = mod("ripe at once", RIPE_AFTER=1)
OTHERS = mod("ripe at once", RIPE_AFTER=2)
NUMBER = 3
for rules in (RULES, OTHERS):
    # The published game's machine code: these tests are about names, not about plants.
    rules.__dict__["functions"] = original().functions
