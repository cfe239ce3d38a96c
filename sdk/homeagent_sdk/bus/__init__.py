"""The bus client: one :class:`Peer` per process."""
