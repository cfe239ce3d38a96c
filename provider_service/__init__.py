"""The provider service: translates one request into the dialect of a language model's API, and the answer back.

It runs as ``python -m provider_service``; the path of a call is ``service`` → ``chat`` → ``attempt`` → ``upstream``.
"""
