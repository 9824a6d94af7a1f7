"""What `speed.py` is made of: subjects, each timed in a process of its own, and the page that its figures stand on."""
