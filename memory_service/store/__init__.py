"""Where the memory lies: one interface (:mod:`.abc`), one implementation on SQLite (:mod:`.sqlite`)."""
