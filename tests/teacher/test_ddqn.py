import torch

from spikestill.teacher.atari.ddqn import double_q_target, td_loss


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
