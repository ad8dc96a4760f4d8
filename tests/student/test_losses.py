import torch

from spikestill.student.losses import distillation_loss, kl, mse, nll

LOGITS = torch.tensor([[1.0, 0.0, -1.0], [0.0, 2.0, 0.5]])
Q = torch.tensor([[0.03, 0.01, 0.0], [0.5, 0.52, 0.1]])


def test_kl_is_the_papers_formula():
    p = torch.softmax(Q / 0.01, dim=1)
    expected = (p * torch.log(p / torch.softmax(LOGITS, dim=1))).sum(dim=1).mean()
    torch.testing.assert_close(kl(LOGITS, Q, 0.01), expected)
    assert kl(Q / 0.01, Q, 0.01).abs() < 1e-6


def test_kl_is_finite_where_the_teacher_is_certain():
    assert torch.isfinite(kl(LOGITS, Q * 1e5, 0.01))


def test_nll_and_mse():
    log_p = torch.log_softmax(LOGITS, dim=1)
    torch.testing.assert_close(nll(LOGITS, Q), -(log_p[0, 0] + log_p[1, 1]) / 2)
    torch.testing.assert_close(mse(LOGITS, Q), (LOGITS - Q).var(dim=1, correction=0).mean())
    assert distillation_loss("mse", LOGITS, Q, 0.01) == mse(LOGITS, Q)
    assert distillation_loss("kl", LOGITS, Q, 0.01) == kl(LOGITS, Q, 0.01)


def test_the_squared_error_does_not_see_what_all_actions_share():
    """Q-values of 12 and more are as near to votes in 0..1 as those around 0."""
    torch.testing.assert_close(mse(LOGITS, Q + torch.tensor([[12.0], [-5.0]])), mse(LOGITS, Q))
    torch.testing.assert_close(mse(Q + 3.0, Q + 12.0), torch.tensor(0.0))
