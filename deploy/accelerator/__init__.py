"""FIXAR's accelerator (Yang 2021): its cycle-counted model, its SystemVerilog, and what it costs."""
