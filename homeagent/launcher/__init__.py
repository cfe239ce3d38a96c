"""``homeagent up``: starts the four services on one machine, keeps them alive, and stops them in order."""
