"""A trainer of your own: PPO with a penalty on the KL divergence in place of clipping.

    achieve train --preset quick --trainer examples.own_trainer:KLPenaltyTrainer
"""

from torch import Tensor

from achieve.algo.learner import PPOLearner
from achieve.algo.ppo import approximate_kl
from achieve.trainers.ppo import PPOTrainer

PENALTY = 1.0


class KLPenaltyLearner(PPOLearner):
    def policy_loss(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> Tensor:
        ratio = (log_probs - old_log_probs).exp()
        return PENALTY * approximate_kl(log_probs, old_log_probs) - (ratio * advantages).mean()


class KLPenaltyTrainer(PPOTrainer):
    """Rollouts, auxiliary phases, saving and resuming are PPO's own; a subclass of `BaseTrainer` brings all of them."""

    learner_class = KLPenaltyLearner
