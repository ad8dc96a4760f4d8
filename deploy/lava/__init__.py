"""The Lava backends: ``fused`` plays live in one custom Process, ``stock`` is the hardware-shaped form.

Inside this package ``import lava`` means the third-party package (lava-nc); nothing outside it imports Lava.
"""
