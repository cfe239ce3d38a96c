"""The memory service: keeps every event, and finds again what belongs to a question.

A message's way: :mod:`.service` (bus) → :mod:`.requests` (what was asked) → :mod:`.recall` (which events, in what
order) → :mod:`.store` (where they lie). :mod:`.words` knows how Chinese and English text becomes searchable words.
"""

import os

# numpy's linear algebra starts a thread for each core when it is imported. One is enough for what is compared here, and
# the process must have a single thread when it locks itself in: Landlock would not bind the others.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
