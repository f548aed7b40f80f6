import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from r2r2.envs.spec import Spec
from r2r2.replay import buffer as ring
from r2r2.replay import sum_tree

SPEC = Spec(obs_dim=2, action_dim=1)
ADD = jax.jit(ring.add)


class Recorder:
    """Stores episodes whose numbers identify their steps.

    Observation t of episode e is (e, t), its action t + 0.5, its reward 100 e + t.
    """

    def __init__(self, size: int, fanout: int = 4):
        self.episode, self.t = 0, 0
        self.replay = ring.init(size, SPEC, jnp.zeros((1, 2)), fanout)
        self.seen: list[tuple] = []

    def step(self, ended: bool, terminated: bool = False) -> None:
        e, t = self.episode, self.t
        after = (e, t + 1)
        self.episode, self.t = (e + 1, 0) if ended else after
        step = ring.Transition(
            action=jnp.array([[t + 0.5]]),
            reward=jnp.array([100.0 * e + t]),
            terminated=jnp.array([terminated]),
            ended=jnp.array([ended]),
            next_obs=jnp.array([after], float),
            obs=jnp.array([(self.episode, self.t)], float),
            lost=jnp.array([False]),
        )
        self.replay = ADD(self.replay, jnp.zeros(1, int), step)
        self.seen.append(((e, t), t + 0.5, 100.0 * e + t, after, terminated))

    def lose(self) -> None:
        """Lose the current step: the next episode begins."""
        self.episode, self.t = self.episode + 1, 0
        first = jnp.array([(self.episode, 0)], float)
        no = jnp.array([False])
        nothing = jnp.zeros((1, 1)), jnp.zeros(1), no, no, first, first, ~no
        lost = ring.Transition(*nothing)
        self.replay = ADD(self.replay, jnp.zeros(1, int), lost)

    def live(self) -> list[tuple]:
        """Return every live row as a transition, in the order of the rows."""
        weights = self.replay.priorities.tree.weights[0, : self.size]
        index = jnp.flatnonzero(weights)
        batch = ring.fetch(self.replay.rows, 0, index)
        return [
            (tuple(s.tolist()), float(a[0]), float(r), tuple(n.tolist()), bool(d))
            for s, a, r, n, d in zip(*map(np.asarray, batch), strict=True)
        ]

    @property
    def size(self) -> int:
        return self.replay.rows.reward.shape[1]


def test_episodes_take_one_row_more_than_their_steps():
    recorder = Recorder(20)
    for ended in (False, False, True, False, True):
        recorder.step(ended)
    assert int(recorder.replay.newest[0]) == 5 + 2
    assert recorder.live() == recorder.seen


def test_the_newest_row_is_dead_until_its_successor_exists():
    recorder = Recorder(10)
    assert recorder.live() == []
    recorder.step(ended=False)
    assert recorder.live() == recorder.seen[:1]
    assert recorder.replay.priorities.tree.weights[0, 1] == 0


def test_final_observation_is_not_that_of_the_reset():
    recorder = Recorder(10)
    recorder.step(ended=False)
    recorder.step(ended=True, terminated=True)
    recorder.step(ended=False)
    final = recorder.live()[1]
    assert final[3] == (0, 2)
    assert final[4] is True
    assert recorder.live()[2][0] == (1, 0)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([4, 7]), st.lists(st.sampled_from("-tel"), max_size=60))
def test_live_rows_are_the_newest_transitions(size, kinds):
    """Kinds of steps: ordinary, terminated, ended or lost."""
    recorder = Recorder(size)
    steps = sum(kind != "l" for kind in kinds)
    for kind in kinds:
        if kind == "l":
            recorder.lose()
        else:
            recorder.step(ended=kind in "te", terminated=kind == "t")
    live = sorted(recorder.live(), key=recorder.seen.index)
    assert live == recorder.seen[len(recorder.seen) - len(live) :]
    # A ring of N rows loses one to the newest and one to each ending it holds; a step
    # that was lost took a row too.
    endings = sum(kind in "tel" for kind in kinds[-size:])
    assert len(live) >= min(steps, size - 2 - endings)


def test_row_of_a_lost_step_ends_a_transition_and_starts_none():
    recorder = Recorder(10)
    recorder.step(ended=False)
    recorder.lose()
    recorder.lose()
    recorder.step(ended=False)
    assert recorder.live() == recorder.seen
    assert [row[0] for row in recorder.live()] == [(0, 0), (2, 0)]
    assert recorder.live()[0][3] == (0, 1)
    assert recorder.replay.priorities.tree.weights[0, :5].tolist() == [1, 0, 0, 1, 0]


def test_new_rows_get_the_highest_priority():
    recorder = Recorder(10)
    recorder.step(ended=False)
    replay = recorder.replay
    priorities = replay.priorities._replace(highest=jnp.array([7.0]))
    recorder.replay = replay._replace(priorities=priorities)
    recorder.step(ended=False)
    assert recorder.replay.priorities.tree.weights[0, :3].tolist() == [1, 7, 0]


def test_updates_raise_the_highest_priority_and_refresh_lowers_it():
    tree = sum_tree.assign(sum_tree.init(8, 4), jnp.arange(4), jnp.ones(4))
    priorities = ring.Priorities(tree, jnp.ones(()))
    priorities = ring.update_priorities(priorities, jnp.array([1, 2]), jnp.array([5.0, 2.0]))
    assert priorities.highest == 5
    priorities = ring.update_priorities(priorities, jnp.array([1]), jnp.array([1.5]))
    assert priorities.highest == 5
    assert ring.refresh_max_priority(priorities).highest == 2


def test_members_do_not_share_rows():
    replay = ring.init(8, SPEC, jnp.zeros((3, 2)), 4)
    step = ring.Transition(
        action=jnp.ones((2, 1)),
        reward=jnp.array([5.0, 6.0]),
        terminated=jnp.array([False, True]),
        ended=jnp.array([False, True]),
        next_obs=jnp.ones((2, 2)),
        obs=jnp.ones((2, 2)),
        lost=jnp.array([False, False]),
    )
    # Member 2 occurs twice, as in a padded group.
    thrice = jax.tree.map(lambda x: x[jnp.array([0, 1, 0])], step)
    replay = ADD(replay, jnp.array([2, 0, 2]), thrice)
    assert replay.newest.tolist() == [2, 0, 1]
    assert replay.rows.reward[:, 0].tolist() == [6, 0, 5]
    assert replay.priorities.tree.levels[0][:, 0, 0].tolist() == [1, 0, 1]


def test_dead_rows_are_never_sampled():
    recorder = Recorder(40, fanout=4)
    for t in range(70):
        recorder.step(ended=t % 3 == 2)
    tree = jax.tree.map(lambda x: x[0], recorder.replay.priorities.tree)
    uniforms = ring.sampling_uniforms(jax.random.key(0), 5_000, tree)
    assert uniforms.min() > 0
    index = sum_tree.sample(tree, uniforms)
    batch = ring.fetch(recorder.replay.rows, 0, index)
    np.testing.assert_array_equal(batch.next_obs[:, 0], batch.obs[:, 0])
    np.testing.assert_array_equal(batch.next_obs[:, 1], batch.obs[:, 1] + 1)
