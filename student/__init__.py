"""Binary-activation, ternary-weight students (McKinstry 2018): layers, losses, distillation, the integer net."""
