import torch

from spikestill.teacher.atari.ddqn import (
    advantage_learning_target,
    double_q_target,
    munchausen_target,
    td_loss,
)


def test_target_is_selected_online_and_evaluated_by_the_target_network():
    q_online = torch.tensor([[1.0, 2.0, 0.0], [5.0, 1.0, 1.0]])
    q_target = torch.tensor([[10.0, 20.0, 30.0], [1.0, 2.0, 3.0]])
    target = double_q_target(q_online, q_target, torch.tensor([0.5, -1.0]), torch.tensor([0.9, 0.0]))
    torch.testing.assert_close(target, torch.tensor([0.5 + 0.9 * 20.0, -1.0]))


def test_loss_is_the_weighted_huber_and_its_gradient_is_clipped():
    q = torch.tensor([[0.0, 0.5], [3.0, 0.0]], requires_grad=True)
    weight = torch.tensor([1.0, 0.5])
    loss, error = td_loss(q, torch.tensor([1, 0]), torch.tensor([0.0, 0.0]), weight)
    torch.testing.assert_close(error, torch.tensor([0.5, 3.0]))
    torch.testing.assert_close(loss, torch.tensor((0.5 * 0.25 + 0.5 * 2.5) / 2))
    loss.backward()
    # d/dq of the mean: error 0.5 inside the quadratic part, 3.0 clipped to 1 and weighted by 0.5.
    torch.testing.assert_close(q.grad, torch.tensor([[0.0, 0.25], [0.25, 0.0]]))


def test_the_munchausen_target_is_the_papers_equation():
    """Two transitions by hand: a temperature of 1, an action that is unlikely to the floor and one that is not."""
    q_tm1 = torch.tensor([[0.0, 0.0], [9.0, 0.0]])
    q_t = torch.tensor([[1.0, 1.0], [4.0, 2.0]])
    made = munchausen_target(
        q_tm1, torch.tensor([0, 1]), q_t, torch.tensor([0.5, -1.0]), torch.tensor([0.9, 0.0]), 1.0, 0.8
    )
    # ln pi = -ln 2; soft value of two equal Q = 1 + ln 2. The second is at the floor, and ends its return.
    expected = torch.tensor([0.5 - 0.8 * 0.6931472 + 0.9 * 1.6931472, -1.0 - 0.8])
    torch.testing.assert_close(made, expected)


def test_a_cold_munchausen_target_without_its_bonus_is_that_of_dqn():
    q_t = torch.tensor([[1.0, 2.0, 0.0]])
    made = munchausen_target(q_t, torch.tensor([0]), q_t, torch.tensor([0.5]), torch.tensor([0.9]), 1e-3, 0.0)
    torch.testing.assert_close(made, torch.tensor([0.5 + 0.9 * 2.0]))


def test_advantage_learning_takes_part_of_the_disadvantage_away():
    q_tm1 = torch.tensor([[1.0, 3.0], [1.0, 3.0]])
    made = advantage_learning_target(torch.tensor([5.0, 5.0]), q_tm1, torch.tensor([0, 1]), 0.9)
    torch.testing.assert_close(made, torch.tensor([5.0 - 0.9 * 2.0, 5.0]))
