"""Decisions over HTTP: `app` is the FastAPI application, `ray_app` the same application on Ray Serve.

Needs ``pip install 'time2decide[serve]'``.
"""
