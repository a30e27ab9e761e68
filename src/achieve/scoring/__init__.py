"""How a run is judged: its episode log, the score by Crafter's protocol, and the same while it is still training."""
