"""`relay doctor`: what can be seen before it breaks. Readers gather facts, checks without any I/O judge them.

A check gives a finding for whatever it looked at, well or not. Nothing here changes anything.
"""
