"""Reporting: sentences, terminal output, plots, HTML pages and TensorBoard logs of a run; imports no TensorFlow.

All of it is generated from a run's files and can be regenerated from them at any time. Whatever reads them raises
``RecordError`` if the folder is not a run's or a file is damaged, and a picture also if no epoch was reported.
"""
