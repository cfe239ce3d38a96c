"""The plugins that come with HomeAgent, each written against the sdk alone."""
