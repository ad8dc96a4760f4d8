import torch

from spikestill.student.losses import distillation_loss, kl, mse, nll, student_outputs

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
    torch.testing.assert_close(mse(LOGITS, Q), ((LOGITS - Q) ** 2).mean())
    assert distillation_loss("mse", LOGITS, Q, 0.01) == mse(LOGITS, Q)
    assert distillation_loss("kl", LOGITS, Q, 0.01) == kl(LOGITS, Q, 0.01)


def test_outputs_of_the_squared_error_lie_on_both_sides_of_zero():
    rates = torch.tensor([[0.0, 0.25, 1.0]])
    assert student_outputs("mse", rates, 8.0).tolist() == [[-4.0, -2.0, 4.0]]
    assert student_outputs("kl", rates, 8.0).tolist() == [[0.0, 2.0, 8.0]]
