"""Watching scripts: runs an unedited training script and records every optimizer step that it makes.

``script`` runs in a process of its own, made for one script; it patches Keras and TensorFlow, so nothing else may
happen there. It writes what it sees into a folder, which ``trace`` reads back without TensorFlow.
"""
