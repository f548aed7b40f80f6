"""What the loop of updates does once, for one member."""

from r2r2.compute.update import learn, sample


def update_once(agent, data, learner, member, draws, step):
    found = sample(data, learner.priorities, member, draws)
    return learn(agent, learner, found, step)
