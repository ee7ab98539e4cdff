"""Language models over HTTP, as OpenAI's API has it.

thresher serve MODEL                 # in the terminal
app = thresher.serve.create_app(llm) # an ASGI application, for a server of your own
app = thresher.serve.ray_app(path)   # for Ray Serve
"""

from thresher.serve.app import create_app
from thresher.serve.ray_cluster import ray_app
from thresher.serve.service import Service

__all__ = ["Service", "create_app", "ray_app"]
