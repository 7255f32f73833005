"""Trainers: ``fit`` as the reference, a custom loop and a custom ``train_step`` equal to it, and the tutorial's loop.

A trainer takes everything from its ``Run``. ``custom_loop.py`` is the module to read first, and ``train_step.py`` the
second; the details that they leave to other modules are named in their comments.
"""
